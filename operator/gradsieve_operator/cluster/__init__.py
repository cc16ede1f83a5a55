"""Everything that talks: to the API server, to coordinators, and to the clock."""
