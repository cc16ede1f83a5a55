"""What is sent of every gradient: a job's compression, and the policies that jobs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.steering import SteeringFields
from gradsieve_operator.spec.values import (
    ALGORITHMS,
    BOUNDED_ALGORITHMS,
    DENSE_ALGORITHMS,
    MAX_DENSITY,
    MAX_OBJECT_NAME,
    OBJECT_NAME,
    Algorithm,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """How much of a gradient is sent, and by which rule. What is None is left to the training program.

    algorithm: the rule; fixed while the job runs.
    density_permille: entries sent, of a thousand; may change while the job runs.
    min_density_permille, max_density_permille: limits for rules that choose densities themselves (Layered,
        Importance), and for adaptation; may change while the job runs.
    """

    algorithm: Algorithm | None = None
    density_permille: int | None = None
    min_density_permille: int | None = None
    max_density_permille: int | None = None

    @classmethod
    def parse(cls, source: Fields) -> Compression:
        """Read ``source``, which is not checked for contradictions: see `check`.

        Raises:
            SpecError: a field's value is not allowed.
        """
        return cls(
            algorithm=source.word("algorithm", ALGORITHMS),
            density_permille=source.number("densityPermille", 1, MAX_DENSITY),
            min_density_permille=source.number("minDensityPermille", 1, MAX_DENSITY),
            max_density_permille=source.number("maxDensityPermille", 1, MAX_DENSITY),
        )

    def over(self, policy: Compression) -> Compression:
        """Return this compression with what it leaves open taken from ``policy``."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return Compression(
            **{name: getattr(policy, name) if value is None else value for name, value in own.items()}
        )

    def check(self, source: Fields, *, adapted: bool = False) -> None:
        """Compare the fields with one another.

        Args:
            source: where they were read.
            adapted: whether there is an adaptation beside them, which takes limits under every rule.

        Raises:
            SpecError: they contradict one another.
        """
        density, least, most = self.density_permille, self.min_density_permille, self.max_density_permille
        named = (("densityPermille", density), ("minDensityPermille", least), ("maxDensityPermille", most))
        for name, value in named:
            if value is not None and self.algorithm in DENSE_ALGORITHMS:
                raise source.error(name, f"has no meaning for algorithm {self.algorithm}; remove it")
        for name, value in named[1:]:
            if value is not None and not adapted and self.algorithm not in (None, *BOUNDED_ALGORITHMS):
                bounded = " and ".join(BOUNDED_ALGORITHMS)
                problem = f"is for {bounded}, not for {self.algorithm}; remove it, or give spec.adaptation"
                raise source.error(name, problem)
        for low, high in ((named[1], named[0]), (named[0], named[2]), (named[1], named[2])):
            if low[1] is not None and high[1] is not None and low[1] > high[1]:
                raise source.error(low[0], f"is {low[1]}; it must be at most {high[0]}, which is {high[1]}")

    def manifest(self) -> dict[str, Any]:
        """Return the fields that are set, as the API and the coordinator spell them."""
        spelled = {
            "algorithm": self.algorithm,
            "densityPermille": self.density_permille,
            "minDensityPermille": self.min_density_permille,
            "maxDensityPermille": self.max_density_permille,
        }
        return {name: value for name, value in spelled.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompression:
    """A job's own settings, and the policy that they are laid over.

    policy: name of a CompressionPolicy in the job's namespace.
    own: the fields that the job itself gives.
    adapted: whether the job gives an adaptation.
    """

    policy: str | None = None
    own: Compression = Compression()
    adapted: bool = False

    @classmethod
    def parse(cls, source: Fields, *, adapted: bool = False) -> JobCompression:
        """Read ``spec.compression``.

        Args:
            source: to read.
            adapted: whether there is a ``spec.adaptation``.

        Raises:
            SpecError: a value is not allowed, or the job's own fields contradict one another.
        """
        own = Compression.parse(source)
        own.check(source, adapted=adapted)
        policy = None
        if source.has("policyRef"):
            reference = source.object("policyRef")
            policy = reference.name("name", OBJECT_NAME, MAX_OBJECT_NAME)
            if policy is None:
                raise reference.missing("name", "which CompressionPolicy of the namespace holds")
        return cls(policy=policy, own=own, adapted=adapted)

    def resolve(self, policy: Compression | None, *, adapted: bool = False) -> Compression:
        """Return what the job runs with, given the policy that it names.

        Args:
            policy: None for none.
            adapted: whether the policy gives an adaptation.

        Raises:
            SpecError: job and policy together contradict one another.
        """
        whole = self.own if policy is None else self.own.over(policy)
        whole.check(Fields({}, "spec.compression"), adapted=adapted or self.adapted)
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionPolicy:
    """A compression, and how to train by it, that several jobs of a namespace share."""

    namespace: str
    name: str
    compression: Compression
    steering: SteeringFields

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> CompressionPolicy:
        """Read the object that the API server returns.

        Raises:
            SpecError: a field's value is not allowed.
        """
        metadata, spec = Fields.of(body.get("metadata"), "metadata"), Fields.of(body.get("spec"), "spec")
        compression, steering = Compression.parse(spec), SteeringFields.parse(spec)
        compression.check(spec, adapted=steering.adapts)
        return cls(
            namespace=str(metadata.values.get("namespace", "")),
            name=str(metadata.values.get("name", "")),
            compression=compression,
            steering=steering,
        )
