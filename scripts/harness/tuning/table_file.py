"""The Python file with the tiles that were kept, which triton_fused_v2 loads on the GPU of that name."""

from harness.core.errors import UserError
from harness.tuning.record import Record


def source(record: Record) -> str:
    """The file's text. Raises UserError where nothing was compared yet."""
    if not record.compared:
        raise UserError("nothing has been chosen yet: no T was tuned to its end")
    head = record.head
    lines = [
        f'"""{head.provenance.hardware}: tiles by token count, {head.local_experts} local experts, '
        f"hidden {head.hidden}, intermediate {head.intermediate}.",
        "",
        f"Written by moebench tune from {record.path.name if record.path else 'a record'}: {head.versions_text}.",
        '"""',
        "",
        "TABLE = (",
    ]
    for num_tokens, compared in sorted(record.compared.items()):
        first, second = compared.kept
        lines += ["    {", f'        "T": {num_tokens},', f'        "gemm1_fused": {first.fused},']
        lines += [f'        "gemm2_tma": {first.tma},']
        for variant in (first, second):
            fields = ", ".join(f'"{field}": {value}' for field, value in variant.tile._asdict().items())
            lines.append(f'        "{variant.stage}": {{{fields}}},')
        lines.append("    },")
    return "\n".join([*lines, ")", ""])
