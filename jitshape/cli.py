"""The command line: `python -m jitshape explain SCRIPT [ARGS]`, `kernels SCRIPT`, `trace DIR`,
`profile`, `cache info|clear|verify|export|import`.

The script runs in this process exactly as `python SCRIPT ARGS` would run it; the report comes
after its own output, on stderr with --stderr, else on stdout.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitshape.errors import JitshapeError

if TYPE_CHECKING:
    from types import TracebackType

    from jitshape.cache.store import Store
    from jitshape.observe.records import EntryRecord, Record

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(help="Look at what jitshape compiles, and why.")
@click.version_option(package_name="jitshape")
def main() -> None:
    pass


def run_script(script: str, arguments: tuple[str, ...]) -> tuple[int, object]:
    """Run the script as __main__; its exit status, its traceback already printed, and what keeps
    its functions alive.  What earlier runs learned is left aside, so that every run of a program
    is explained in the same way."""
    from jitshape import profile
    from jitshape.observe.records import detailed

    profile.forget()
    saved_argv, saved_path = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    names: object = None
    try:
        with detailed():
            names = runpy.run_path(script, run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code
        return (code if isinstance(code, int) else int(code is not None)), exit_
    except BaseException as error:
        traceback.print_exception(error.with_traceback(_of_script(error.__traceback__)))
        return 1, error
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    return 0, names


def _of_script(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that run the script."""
    own = (__file__, "<frozen runpy>", runpy.__file__)
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    return frames


def read_trace(folder: str) -> list[Record]:
    """The records of a trace folder."""
    from jitshape.observe import report

    path = Path(folder) / "events.jsonl"
    if not path.exists():
        raise click.ClickException(
            f"{path} does not exist: run the program with JITSHAPE_TRACE={folder} first"
        )
    try:
        return report.from_file(path)
    except (JitshapeError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path} is not a trace of jitshape: {error}") from error


def _script_argument(function):
    function = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(function)
    return click.argument("script", type=click.Path(exists=True, dir_okay=False))(function)


@main.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write the report as a page.")
@click.option("--guards", is_flag=True, help="Print every guard of every entry.")
@click.option("--stderr", is_flag=True, help="Print the report to stderr.")
@click.argument("script", metavar="SCRIPT|TRACE_DIR", type=click.Path(exists=True))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def explain(
    script: str,
    arguments: tuple[str, ...],
    as_json: bool,
    html: str | None,
    guards: bool,
    stderr: bool,
) -> None:
    """Run SCRIPT, or read the trace in TRACE_DIR, and report every compile and recompile: which
    guard failed, the line that made it, the values seen, the smallest change that avoids it, and
    the compiles it would save; and of each function the entries with their guards and use."""
    from jitshape.observe import page, records, report, story

    status, found, entries, alive = 0, [], [], None
    if Path(script).is_dir():
        found = read_trace(script)
    else:
        status, alive = run_script(script, arguments)
        found, entries = list(records.records()), _live_entries()
    out = sys.stderr if stderr else sys.stdout
    told = story.stories(found, entries)
    if html:
        Path(html).write_text(page.page(told, Path(script).name), encoding="utf-8")
    if as_json:
        print(json.dumps(story.as_json(told)), file=out)
    elif not html:
        report.print_report(found, out, told, guards)
    del alive
    sys.exit(status)


def _live_entries() -> list[EntryRecord]:
    compiler = sys.modules.get("jitshape.compiler")  # the script may never have used it
    return compiler.live_entries() if compiler else []


@main.command(context_settings=_PASS_ON)
@click.option("--quality", is_flag=True, help="Compile them for GPUs, and tell what comes out.")
@click.option(
    "--target", "targets", multiple=True, help="sm_80, sm_90 or gfx942 (any number; all of them)."
)
@_script_argument
def kernels(script: str, arguments: tuple[str, ...], quality: bool, targets: tuple) -> None:
    """Run SCRIPT and print the kernels that were generated for it, as loops with the lines that
    they come from (JITSHAPE_LOGS=output_code shows the code made of them).  With --quality, of
    each as a Triton kernel: registers, spills, widths of accesses, shared memory, occupancy."""
    from jitshape.observe import records, report

    if not quality:
        status, _ = run_script(script, arguments)
        report.print_kernels(records.records(), sys.stdout)
        sys.exit(status)
    from jitshape.backend.compile import watched_kernels
    from jitshape.backend.quality import DEVICES, unique_qualities

    unknown = [target for target in targets if target not in DEVICES]
    if unknown:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(DEVICES)}")
    with watched_kernels() as found:
        status, _ = run_script(script, arguments)
    report.print_quality(unique_qualities(found, targets or tuple(DEVICES)), sys.stdout)
    sys.exit(status)


@main.command()
@click.option("--clear", is_flag=True, help="Delete it.")
def profile(clear: bool) -> None:
    """Show the shape profile: which sizes and numbers of which functions changed in earlier
    runs, and are symbolic from the first compile on."""
    from jitshape import profile as profiles
    from jitshape.observe.report import plural

    path = profiles.profile_path()
    if path is None:
        raise click.ClickException("JITSHAPE_PROFILE=0 switches the shape profile off")
    if clear:
        path.unlink(missing_ok=True)
    functions = profiles.read(path)
    print(f"{path}: {plural(len(functions), 'function')}")
    for function in functions.values():
        print(f"{function.name}, used {function.used}")
        for source, values in function.sources.items():
            print(f"    {source} was {', '.join(map(repr, values))}")


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--chrome", type=click.Path(dir_okay=False), help="Write a timeline for Perfetto.")
def trace(folder: str, chrome: str | None) -> None:
    """Report what a program run with JITSHAPE_TRACE=FOLDER recorded."""
    from jitshape.observe import report

    records = read_trace(folder)
    if chrome:
        Path(chrome).write_text(json.dumps(report.timeline(records)), encoding="utf-8")
    else:
        report.print_report(records, sys.stdout)


@main.group()
def cache() -> None:
    """Look at, check, empty and move what is kept on disk for later processes: compiled code, in
    the folder that JITSHAPE_CACHE_DIR names."""


def _store() -> Store:
    from jitshape.cache.store import open_store

    store = open_store()
    if store is None:
        raise click.ClickException("there is no cache: see the warning, or unset JITSHAPE_CACHE")
    return store


@cache.command()
def info() -> None:
    """Print the folder, its size and limit, and the entries and bytes of each level."""
    from jitshape.cache import archive

    store = _store()
    found = archive.survey(store)
    total = sum(found.sizes.values())
    print(f"{store.root}: {total} bytes of at most {store.limit}")
    print(f"environment {store.environment[:16]}")
    for level in sorted(found.sizes):
        own, others = found.own[level], found.others[level]
        print(f"    {level}: {found.sizes[level]} bytes; files of this environment: {own}, "
              f"of others: {others}")  # fmt: skip
    if found.damaged:
        print(f"    damaged: {len(found.damaged)} files; `cache verify` names them")


@cache.command()
def clear() -> None:
    """Delete all entries, those of other versions too.  The shape profile stays."""
    from jitshape.cache import eviction
    from jitshape.cache.store import ENTRIES
    from jitshape.options import cache_folder

    count, size = eviction.clear(cache_folder() / ENTRIES)
    print(f"deleted {count} files, {size} bytes")


@cache.command()
@click.option("--delete", is_flag=True, help="Delete the files that are damaged.")
def verify(delete: bool) -> None:
    """Check every file; the exit status is 1 where one is damaged."""
    from jitshape.cache import archive

    found = archive.survey(_store())
    print(f"{found.own.total() + found.others.total()} entries are whole")
    for path, reason in found.damaged.items():
        print(f"{path}: {reason}{', deleted' * delete}")
        if delete:
            path.unlink(missing_ok=True)
    sys.exit(bool(found.damaged))


@cache.command("export")
@click.argument("file", type=click.Path(dir_okay=False))
def export_(file: str) -> None:
    """Write the entries of this environment to FILE."""
    from jitshape.cache import archive

    try:
        print(f"{archive.export(_store(), Path(file))} entries in {file}")
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error}") from error


@cache.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def import_(file: str) -> None:
    """Add the entries of FILE, which `cache export` wrote on a machine of this kind.  They are
    machine code: import what you trust as you trust a program."""
    from jitshape.cache import archive
    from jitshape.cache.files import Damaged

    store = _store()
    try:
        count = archive.load(store, Path(file))
    except (Damaged, OSError) as error:
        raise click.ClickException(f"{file} is not imported: {error}") from error
    if not store.writable:
        raise click.ClickException(f"{file} is not imported: see the warning")
    print(f"{count} entries from {file}")
