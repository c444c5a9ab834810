"""What is wrong with a record or manifest of another form, in the words of its schema."""

from pydantic import ValidationError


def first_fault(error: ValidationError, whole: str) -> str:
    """'libs.torch: Field required': the first fault; `whole` stands for the place where no one field is at fault."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"
