"""The command line: how each run of a command starts and ends.

Data goes to stdout, everything else to stderr; a failure is one line and an exit code (1: the
command failed, 2: wrong usage, 130: interrupted, 143: stopped by SIGTERM). Even click is imported
only when it is needed, so that `harn --version` starts at once.

commands.py       the tree of commands, each imported when it is called
target.py         which manifest and which store a command uses
store_choice.py   which store: --storage, HARN_STORAGE or the state directory
ask_service.py    run a verb in the running service, or else in this process
service_connection.py HTTP over the service's socket
signals.py        how a signal ends a command
garbage_collector.py how seldom a short command looks for garbage
command_log.py    what a command logs
output.py         JSON or text, and never a terminal's escapes
tables.py         tables and sentences that fit the terminal; colours.py, what colours mean
progress.py       the line that tells what a command is doing
orchestrator_commands.py `harn orchestrator`: check.py, serve.py, fire.py, dlq.py, reload.py,
                  metrics.py
queue_commands.py `harn orchestrator queue`: queue_list.py, queue_drain.py, queue_jobs.py,
                  queue_explain.py, queue_changes.py, what_if.py
second_process.py a computation beside that of the command
worker_command.py `harn worker`; worker_processes.py, its children; worker_parent.py, how they
                  see the command that started them
log_commands.py   `harn log`: log_verify.py, log_transfer.py, log_topic.py; log_store.py, its store
ratelimit.py      `harn ratelimit`; usage_command.py, `harn usage`
portal_command.py `harn portal`
top.py            `harn top`; top_tables.py, what it shows; top_live.py, its screen and keys
demo/             `harn demo`
doctor.py         `harn doctor`; completion.py, `harn completion`; name_completion.py, the
                  names of queues, topics, pools and triggers that a shell completes
lint.py           `harn lint`; lint_rules.py, its rules: lint_owned.py, lint_late_binding.py;
                  lint_findings.py, what a rule reports
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from harn import __version__
from harn.cli.garbage_collector import begin_command, end_command

if TYPE_CHECKING:
    import click


def run_alone() -> NoReturn:
    """Run the command line as the whole work of this process."""
    begin_command()
    try:
        main()
    finally:
        end_command()


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its exit code."""
    try:
        code = invoke(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # while it was still importing
        code = _fail("interrupted", 130)
    sys.exit(code)


def invoke(argv: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    if list(argv) == ["--version"]:
        print(f"harn {__version__}")
        return 0
    return _invoke(argv)


def _invoke(argv: Sequence[str]) -> int:
    import click

    from harn.cli.commands import harn
    from harn.cli.signals import STOPPED
    from harn.errors import HarnError

    try:
        result = harn.main(args=list(argv), prog_name="harn", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        help_wanted.show()
        return 2
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        return _fail(_usage(error, argv), 2)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except SystemExit as stopped:
        if stopped.code not in STOPPED:
            raise
        return _fail(STOPPED[stopped.code], int(stopped.code or 0))
    except HarnError as error:
        from harn.cli.output import has_traceback

        return _with_traceback(error, str(error)) if has_traceback(error) else _fail(str(error), 1)
    except ImportError as error:
        return _missing(error)
    except OSError as error:
        return _system_error(error)
    except Exception as error:
        return _unexpected(error)


def _usage(error: click.UsageError, argv: Sequence[str]) -> str:
    from harn.masking import mask

    where = error.ctx.command_path if error.ctx else "harn"
    text = error.format_message()
    for word in argv:  # click repeats wrong words, and one may be a URL with a password
        text = text.replace(word, mask(word))
    return f"{' '.join(text.split())} (see `{where} --help`)"


def _system_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader of our output has ended, so a message would reach no reader.
        sys.stderr.close()
        return 1
    if isinstance(error, PermissionError):
        return _fail(
            f"no permission for {error.filename or 'a file'}; give this user access, or choose "
            "another directory with --state-dir or HARN_STATE_DIR",
            1,
        )
    return _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)


EXTRA_OF = {
    "starlette": "server",
    "uvicorn": "server",
    "jinja2": "server",
    "httpx2": "llm",
    "jsonschema": "llm",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
}


def _missing(error: ImportError) -> int:
    cause: BaseException | None = error
    while isinstance(cause, ImportError):
        extra = EXTRA_OF.get((cause.name or "").partition(".")[0])
        if extra is not None:
            return _fail(f"this needs the extra {extra!r}: pip install 'harn-runtime[{extra}]'", 1)
        cause = cause.__cause__ or cause.__context__
    return _unexpected(error)


def _unexpected(error: Exception) -> int:
    from harn.error_text import error_text

    return _with_traceback(error, f"unexpected {error_text(error)}")


def _with_traceback(error: Exception, message: str) -> int:
    """Fail with *message*, and say how to see the place of *error*."""
    import traceback

    from harn.escaping import on_lines
    from harn.settings import Settings

    if Settings.load().debug:
        print(on_lines("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    return _fail(f"{message} (HARN_DEBUG=1 shows the traceback)", 1)


def _fail(message: str, code: int) -> int:
    from harn.cli.colours import by_word, has_colours, painted
    from harn.cli.tables import fold, width_of
    from harn.escaping import one_line
    from harn.masking import mask_text

    text = fold(f"{by_word('error')}: {one_line(mask_text(message))}", width_of(sys.stderr))
    print(painted(text, has_colours(sys.stderr)), file=sys.stderr)
    return code
