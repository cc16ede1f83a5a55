"""The page of one job, for a browser: HTML and SVG without scripts, nor anything from elsewhere."""

from gradsieve_hvd.control.page.page import CONTENT_SECURITY_POLICY, page

__all__ = ["CONTENT_SECURITY_POLICY", "page"]
