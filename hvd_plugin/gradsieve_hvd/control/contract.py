"""Every name that coordinator, agents, ranks and operator share; a test compares the operator's copy."""

from __future__ import annotations

PROTOCOL = 1
"""Version that an agent states when it registers; another one is refused."""

# Environment variables of agent and coordinator.
JOB = "GRADSIEVE_JOB"
NAMESPACE = "GRADSIEVE_NAMESPACE"
TLS_DIRECTORY = "GRADSIEVE_TLS_DIR"
POD_UID = "GRADSIEVE_POD_UID"
GENERATION = "GRADSIEVE_GENERATION"
COORDINATOR = "GRADSIEVE_COORDINATOR"
HOST = "GRADSIEVE_HOST"
WORKER_GROUP = "GRADSIEVE_WORKER_GROUP"
SLOTS = "GRADSIEVE_SLOTS"
STATE_DIRECTORY = "GRADSIEVE_STATE_DIR"
LISTEN = "GRADSIEVE_LISTEN"
READ_ONLY_LISTEN = "GRADSIEVE_READONLY_LISTEN"

# Environment variables that only ranks see, or processes below an agent.
JOB_GENERATION = "GRADSIEVE_JOB_GENERATION"
RUN_ID = "GRADSIEVE_RUN_ID"
SAMPLES = "GRADSIEVE_SAMPLES"
"""Path of the agent's socket, to which ranks hand what they have measured of themselves."""
COMPRESSION = "GRADSIEVE_COMPRESSION"

# Files of a TLS directory.
CA_CERTIFICATE = "ca.crt"
CERTIFICATE = "tls.crt"
PRIVATE_KEY = "tls.key"

# A certificate's subject: organisation, and one of three roles as its unit.
ORGANIZATION = "gradsieve"
ROLE_COORDINATOR = "coordinator"
ROLE_WORKER = "worker"
ROLE_OPERATOR = "operator"
SERVER_NAME = "coordinator"
"""Name in every coordinator's certificate; clients check it, whatever address they dial."""

PORT = 7443
READ_ONLY_PORT = 7480

PING_SECONDS = 5.0
"""Agent and coordinator ask each other for a sign of life this often."""

PINGS = 3
"""After so many periods without a word, either gives the other up; an agent on a busy machine may stand
still for all but one of them."""

SILENCE_SECONDS = PINGS * PING_SECONDS

FORSAKEN_SECONDS = 5.0
"""An agent without a coordinator for so long ends what ``mpirun`` has started: that has gone as well."""

KILL_SECONDS = 5.0
"""From SIGTERM to SIGKILL."""

# The coordinator's calls.
AGENT_PATH = "/v1/agent"
ROSTER_PATH = "/v1/roster"
PLAN_PATH = "/v1/plan"
TELEMETRY_PATH = "/v1/telemetry"
STATUS_PATH = "/v1/status"
STOP_PATH = "/v1/stop"
HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
METRICS_PATH = "/metrics"

# What an agent says of its ranks' samples, and what it is answered where they are refused.
RANK_SAMPLES = "samples"
SAMPLES_REFUSED = "samplesRefused"

TAKES_SAMPLES = "takesSamples"
"""Field of the coordinator's answer to a registration: 1 if agents may send what ranks measure. One of an
earlier version, which does not say so, would cut off an agent for it."""

# Backends.
MPI = "MPI"
GLOO = "Gloo"

# States of a job.
WAITING = "Waiting"
STARTING = "Starting"
RUNNING = "Running"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
LOST = "Lost"
STATES = (WAITING, STARTING, RUNNING, SUCCEEDED, FAILED, LOST)
FINAL_STATES = (SUCCEEDED, FAILED)

# Codes with which the coordinator closes an agent's connection.
CLOSE_REPLACED = 4000
CLOSE_MALFORMED = 4400
CLOSE_FORBIDDEN = 4403
CLOSE_FENCED = 4409

FENCED_STATUS = 17
"""Exit status of an agent that was refused because another incarnation of its host has taken its place."""

TERMINATION_LOG = "/dev/termination-log"
"""Where a container leaves its last words, if the file exists."""
