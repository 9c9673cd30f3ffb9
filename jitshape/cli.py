"""The command line: `python -m jitshape explain SCRIPT [ARGS]`, `kernels SCRIPT`, `trace DIR`,
`profile`.

The script runs in this process exactly as `python SCRIPT ARGS` would run it; the report comes
after its own output, on stderr with --stderr, else on stdout.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path

import click

from jitshape.errors import JitshapeError

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(help="Look at what jitshape compiles, and why.")
@click.version_option(package_name="jitshape")
def main() -> None:
    pass


def run_script(script: str, arguments: tuple[str, ...]) -> int:
    """Run the script as __main__; its exit status, its traceback already printed."""
    from jitshape.observe.records import detailed

    saved_argv, saved_path = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        with detailed():
            runpy.run_path(script, run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code
        return code if isinstance(code, int) else int(code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    return 0


def _script_argument(function):
    function = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(function)
    return click.argument("script", type=click.Path(exists=True, dir_okay=False))(function)


@main.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON lines.")
@click.option("--stderr", is_flag=True, help="Print the report to stderr.")
@_script_argument
def explain(script: str, arguments: tuple[str, ...], as_json: bool, stderr: bool) -> None:
    """Run SCRIPT and report every compile and recompile: which guard failed, the line that made
    it, the values seen, the smallest change that avoids it, and the compiles it would save."""
    from jitshape.observe import records, report

    status = run_script(script, arguments)
    out = sys.stderr if stderr else sys.stdout
    if as_json:
        for row in report.as_rows(records.records()):
            print(json.dumps(row), file=out)
    else:
        report.print_report(records.records(), out)
    sys.exit(status)


@main.command(context_settings=_PASS_ON)
@_script_argument
def kernels(script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT and print the kernels that were generated for it."""
    from jitshape.observe import records, report

    status = run_script(script, arguments)
    report.print_kernels(records.records(), sys.stdout)
    sys.exit(status)


@main.command()
@click.option("--clear", is_flag=True, help="Delete it.")
def profile(clear: bool) -> None:
    """Show the shape profile: which sizes and numbers of which functions changed in earlier
    runs, and are symbolic from the first compile on."""
    from jitshape import profile as profiles

    path = profiles.profile_path()
    if path is None:
        raise click.ClickException("JITSHAPE_PROFILE=0 switches the shape profile off")
    if clear:
        path.unlink(missing_ok=True)
    functions = profiles.read(path)
    print(f"{path}: {len(functions)} functions")
    for function in functions.values():
        print(f"{function.name}, used {function.used}")
        for source, values in function.sources.items():
            print(f"    {source} was {', '.join(map(repr, values))}")


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
def trace(folder: str) -> None:
    """Report what a program run with JITSHAPE_TRACE=FOLDER recorded."""
    from jitshape.observe import report

    path = Path(folder) / "events.jsonl"
    if not path.exists():
        raise click.ClickException(
            f"{path} does not exist: run the program with JITSHAPE_TRACE={folder} first"
        )
    try:
        report.print_report(report.from_file(path), sys.stdout)
    except (JitshapeError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path} is not a trace of jitshape: {error}") from error
