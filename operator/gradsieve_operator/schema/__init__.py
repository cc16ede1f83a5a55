"""The schemas of HorovodJob and CompressionPolicy, and the files made from them."""

from gradsieve_operator.schema.comparison import fields_beyond
from gradsieve_operator.schema.compression import policy_definition
from gradsieve_operator.schema.files import crd_files
from gradsieve_operator.schema.job import job_definition

__all__ = ["crd_files", "fields_beyond", "job_definition", "policy_definition"]
