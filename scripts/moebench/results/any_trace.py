"""AnyTrace: a trace of FIB 0.1.2 or of a newer FIB. trace_files.py reads every line as one.

FIB 0.1.2's own `Trace` refuses a status that it does not know, and forgets fields that it does not
know. AnyTrace takes the status "REFUSED", and keeps a field stdev_ms beside latency_ms.
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
    """An Environment that keeps fields which FIB's schema lacks, as do the classes below."""


class AnyCorrectness(Correctness, extra="allow"): ...


class AnyPerformance(Performance, extra="allow"): ...


class AnyEvaluation(Evaluation, extra="allow"):
    """An Evaluation whose status is a text if FIB does not know it.

    FIB checks that correctness and performance fit the status; AnyEvaluation does not.
    """

    status: EvaluationStatus | str = Field(union_mode="left_to_right")
    environment: AnyEnvironment
    correctness: AnyCorrectness | None = None
    performance: AnyPerformance | None = None

    def _validate_status_correctness_performance(self):
        return self


class AnyTrace(Trace, extra="allow"):
    evaluation: AnyEvaluation | None = None

    def unknown_fields(self) -> dict:
        """Return name -> value of the fields, wherever in the trace, that FIB's schema lacks."""
        fields = dict(self.model_extra)
        evaluation = self.evaluation
        if evaluation is not None:
            parts = (
                evaluation.environment,
                evaluation.correctness,
                evaluation.performance,
            )
            for part in filter(None, (evaluation, *parts)):
                fields |= part.model_extra
        return fields
