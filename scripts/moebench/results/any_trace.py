"""FIB's trace as any version of FIB writes it.

FIB's own `Trace` refuses a status that it does not know and a workload without a uuid, and forgets
fields that it does not know. Traces of others are of versions before and after ours.
"""

import json
import uuid

from flashinfer_bench import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Trace,
)
from pydantic import Field, model_validator


class AnyEnvironment(Environment, extra="allow"):
    """Keeps fields that FIB's schema does not have, as do the classes below."""


class AnyCorrectness(Correctness, extra="allow"): ...


class AnyPerformance(Performance, extra="allow"): ...


class AnyEvaluation(Evaluation, extra="allow"):
    """A status that FIB does not know stays a text; what belongs to a status is not checked."""

    status: EvaluationStatus | str = Field(union_mode="left_to_right")
    environment: AnyEnvironment
    correctness: AnyCorrectness | None = None
    performance: AnyPerformance | None = None

    def _validate_status_correctness_performance(self):
        return self


class AnyTrace(Trace, extra="allow"):
    evaluation: AnyEvaluation | None = None

    @model_validator(mode="before")
    @classmethod
    def in_the_schema_of_today(cls, raw: object) -> object:
        """Return raw with a uuid, no evaluation instead of an empty one, and `hardware`.

        Early versions wrote workloads without a uuid, gave a workload alone an empty evaluation and
        called the machine `device`.
        """
        if not isinstance(raw, dict) or not isinstance(raw.get("workload"), dict):
            return raw

        evaluation = raw.get("evaluation") or None
        if isinstance(evaluation, dict):
            evaluation = with_hardware(evaluation)
        return raw | {"workload": with_uuid(raw["workload"]), "evaluation": evaluation}

    def unknown_fields(self) -> dict:
        """Return the fields, wherever in the trace, that FIB's schema does not have."""
        fields = dict(self.model_extra)
        evaluation = self.evaluation
        if evaluation is not None:
            parts = (evaluation.environment, evaluation.correctness, evaluation.performance)
            for part in filter(None, (evaluation, *parts)):
                fields |= part.model_extra
        return fields


def with_uuid(workload: dict) -> dict:
    """Return the workload with a uuid, which depends on its content if it has none."""
    content = json.dumps(workload, sort_keys=True)
    return {"uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, content))} | workload


def with_hardware(evaluation: dict) -> dict:
    """Return the evaluation with the machine under `hardware`, where it was called `device`."""
    environment = evaluation.get("environment")
    if not isinstance(environment, dict) or "device" not in environment:
        return evaluation
    return evaluation | {"environment": {"hardware": environment["device"]} | environment}
