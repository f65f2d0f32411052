"""``cxlemu cc`` and ``cxlemu c++``: compilers for programs that ``cxlemu exec`` runs."""

import sys

import click

from cxlemu.__main__ import main as command_line

_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}
_HELP = """Compile {name} so that `cxlemu exec` sees every load and store, flush and fence, with its line.

    Passes ARGUMENTS to the compiler: {default}, or the gcc or clang that {variable} names. The program also runs
    without cxlemu exec, on ordinary memory.

    \b
    Examples:
      cxlemu {verb} -O2 queue.{suffix} -o queue
      {make} make
      {make} cmake -B build
      {make} ./configure
      {make} cargo build
    """


def _command(language: str, verb: str, **words: str) -> click.Command:
    @click.command(name=verb, context_settings=_SETTINGS, help=_HELP.format(verb=verb, **words))
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="ARGUMENTS...")
    @click.pass_context
    def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
        from faults.programs.compile import main

        ctx.exit(main(language, arguments))

    return command


cc = _command("c", "cc", name="C", default="cc", variable="CXLEMU_CC", suffix="c", make="CC=cxlemu-cc")
cxx = _command(
    "c++",
    "c++",
    name="C++",
    default="c++",
    variable="CXLEMU_CXX",
    suffix="cc",
    make="CC=cxlemu-cc CXX=cxlemu-c++",
)


def cxlemu_cc() -> None:
    """`cxlemu-cc`, for build systems that take only one word for a compiler, and another compiler in its place."""
    sys.argv[1:1] = ["cc"]
    command_line()


def cxlemu_cxx() -> None:
    """`cxlemu-c++`, as `cxlemu-cc`."""
    sys.argv[1:1] = ["c++"]
    command_line()
