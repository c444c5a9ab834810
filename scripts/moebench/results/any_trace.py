"""FIB's trace as newer versions of FIB may write it.

FIB 0.1.2's own `Trace` refuses a status that it does not know, and forgets fields that it does not
know. Here {"status": "REFUSED"} is read, and {"performance": {"stdev_ms": 0.5, ...}} is kept.
"""

from flashinfer_bench import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Trace,
)
from pydantic import Field


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

    def unknown_fields(self) -> dict:
        """Return the fields, wherever in the trace, that FIB's schema does not have."""
        fields = dict(self.model_extra)
        evaluation = self.evaluation
        if evaluation is not None:
            parts = (evaluation.environment, evaluation.correctness, evaluation.performance)
            for part in filter(None, (evaluation, *parts)):
                fields |= part.model_extra
        return fields
