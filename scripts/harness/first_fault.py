"""What is wrong with a record or manifest of another form, in the words of its schema."""

from pydantic import ValidationError


def first_fault(error: ValidationError, whole: str) -> str:
    """'libs.torch: Field required': the first fault; `whole` stands for the place where no one field is at fault.

    What came is told where it is a single value: "target: Input should be 'loose' or 'tight', got 'harsh'".
    """
    first = error.errors()[0]
    got = f", got {first['input']!r}" if first["loc"] and isinstance(first["input"], str | int | float) else ""
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}{got}"
