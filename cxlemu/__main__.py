"""Where the command line begins. The ranks that it starts import this module as their program, and so no command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from cxlemu.cli import main as command

    command(prog_name="cxlemu")


if __name__ == "__main__":
    main()
