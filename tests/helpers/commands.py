"""A command of cxlemu, run in this process."""

from click.testing import CliRunner, Result

from cxlemu.cli import main


def cxlemu(*words: object, code: int | None = None, columns: int | None = None, stdin: str | None = None) -> Result:
    """Run a command; it exits with ``code``, if one is given."""
    environment = None if columns is None else {"COLUMNS": str(columns)}
    result = CliRunner().invoke(main, [str(word) for word in words], input=stdin, env=environment)
    assert code is None or result.exit_code == code, result.output
    return result
