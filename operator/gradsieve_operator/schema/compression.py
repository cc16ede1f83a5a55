"""The schema of compression: in CompressionPolicy and in HorovodJob."""

from __future__ import annotations

from gradsieve_operator.contract import GROUP, POLICY_KIND, POLICY_PLURAL, VERSION
from gradsieve_operator.schema.parts import Schema, definition, fields, listed, number, rules, text, word
from gradsieve_operator.schema.steering import steering
from gradsieve_operator.spec.values import (
    ALGORITHMS,
    BOUNDED_ALGORITHMS,
    DENSE_ALGORITHMS,
    MAX_DENSITY,
    MAX_OBJECT_NAME,
    OBJECT_NAME,
)

_DENSITIES = ("densityPermille", "minDensityPermille", "maxDensityPermille")


def bounds_rule(where: str) -> tuple[str, str]:
    """Return the rule about limits of densities, and its message.

    Args:
        where: of the compression's fields, beside which there may be ``self.adaptation``.
    """
    bounds = " && ".join(f"!has({where}.{name})" for name in _DENSITIES[1:])
    algorithm = f"{where}.algorithm"
    free = f"!has({algorithm}) || {algorithm} in {listed(BOUNDED_ALGORITHMS)}"
    return f"has(self.adaptation) || {free} || ({bounds})", (
        "minDensityPermille and maxDensityPermille are for Layered and Importance, and for every rule beside "
        "adaptation: remove them, or give adaptation"
    )


def compression(description: str, more: dict[str, Schema] | None = None) -> Schema:
    """Return the schema of the fields that policy and job share, ``more`` ones before them."""
    own: dict[str, Schema] = {
        "algorithm": word(
            "Rule that selects the entries; None and FP16 send all. Left out: the program's own choice.",
            ALGORITHMS,
        ),
        "densityPermille": number("Entries sent, of a thousand.", 1, MAX_DENSITY),
        "minDensityPermille": number(
            "Least density of rules that choose it themselves (Layered, Importance), and of adaptation.",
            1,
            MAX_DENSITY,
        ),
        "maxDensityPermille": number(
            "Highest density of rules that choose it themselves (Layered, Importance), and of adaptation.",
            1,
            MAX_DENSITY,
        ),
    }
    return fields(description, {**(more or {}), **own}, **rules(*_rules()))


def job_compression() -> Schema:
    """Return the schema of a job's ``spec.compression``."""
    name = text("Its name.", longest=MAX_OBJECT_NAME, pattern=OBJECT_NAME)
    reference = fields(
        "CompressionPolicy of the same namespace; fields given here take the place of the policy's.",
        {"name": name},
        required=["name"],
    )
    return compression("What is sent of every gradient.", {"policyRef": reference})


def policy_definition() -> Schema:
    """Return the CustomResourceDefinition of CompressionPolicy."""
    columns = [
        {"name": "Algorithm", "type": "string", "jsonPath": ".spec.algorithm"},
        {"name": "Density", "type": "integer", "jsonPath": ".spec.densityPermille"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    spec = compression("What is sent of every gradient, and how ranks train.", steering())
    spec["x-kubernetes-validations"] += rules(bounds_rule("self"))["x-kubernetes-validations"]
    version = {
        "additionalPrinterColumns": columns,
        "schema": {"properties": {"spec": spec}, "required": ["spec"]},
    }
    about = "Compression of gradients that several HorovodJobs of a namespace share."
    return definition(POLICY_KIND, POLICY_PLURAL, "cpol", about, version, group=GROUP, name=VERSION)


def _rules() -> list[tuple[str, str]]:
    dense = listed(DENSE_ALGORITHMS)
    no_density = " && ".join(f"!has(self.{name})" for name in _DENSITIES)
    density, least, most = _DENSITIES
    return [
        (
            f"!has(self.algorithm) || !(self.algorithm in {dense}) || ({no_density})",
            "algorithms None and FP16 send all entries: remove the densities",
        ),
        *(
            (
                f"!has(self.{low}) || !has(self.{high}) || self.{low} <= self.{high}",
                f"{low} must be at most {high}",
            )
            for low, high in ((least, density), (density, most), (least, most))
        ),
    ]
