"""`durable check`: exit codes, forms of the answer, and that nothing is executed."""

from __future__ import annotations

BAD = """
import time
from durable_cli import Context, workflow

raise SystemExit("executed")

@workflow
def late(ctx: Context) -> float:
    return time.time()

@workflow
def fine(ctx: Context) -> int:
    return ctx.run("one", int)
"""


def test_findings_are_lines_that_editors_understand(cli):
    """file:line:column, severity and rule; what would be right; exit 1 for an error."""
    (cli.dir / "bad.py").write_text(BAD)
    result = cli("check", "bad:late")
    where = f"{cli.dir}/bad.py"
    assert result.out.splitlines() == [
        f"{where}:8:1: warning[no-steps] workflow 'late' has no step: nothing of it is recorded",
        '    right: put the work into steps: ctx.run("name", function, ...)',
        f"{where}:9:12: error[clock] time.time() outside a step: it says something else on every replay",
        "    right: ctx.now() is recorded; or read the clock inside a step",
    ]
    assert (result.code, result.err) == (1, "")
    assert not cli.db.exists()


def test_nothing_found(cli):
    """Silence and exit 0; a person is told what was looked at."""
    (cli.dir / "bad.py").write_text(BAD)
    result = cli("check", "bad.py:fine")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert cli("check", "bad.py:fine", "-v").err == "0 errors, 0 warnings in fine\n"
    assert cli("check", "bad.py:fine", "--json").document == []


def test_warnings_leave_the_exit_code_at_0(cli):
    """Told, but no failure; with -q not told either."""
    (cli.dir / "bad.py").write_text(BAD.replace("time.time()", "1.0"))
    result = cli("check", "bad:late")
    assert (result.code, result.out.count("warning[no-steps]")) == (0, 1)
    assert cli("check", "bad:late", "-q").out == ""


def test_the_forms_of_a_list(cli):
    """--json, --format and --fields, as for every list."""
    (cli.dir / "bad.py").write_text(BAD)
    result = cli("check", "bad", "--json")
    assert result.code == 1
    assert [(one["rule"], one["severity"], one["line"], one["column"]) for one in result.document] == [
        ("no-steps", "warning", 8, 1),
        ("clock", "error", 9, 12),
    ]
    assert set(result.document[0]) == {
        *("file", "line", "column", "rule", "severity", "message", "right", "workflow"),
    }
    assert cli("check", "bad", "--fields", "rule,line").out == "no-steps\t8\nclock\t9\n"
    assert cli("check", "bad", "-q").code == 1
    assert cli("check", "bad", "-q").out.count("error[clock]") == 1


def test_targets_that_are_not_there(cli):
    """Not found is 3, no Python is 1; the hint names --app-dir."""
    assert cli("check", "nothing.py").code == 3
    result = cli("check", "nothing")
    assert result.code == 3
    assert "--app-dir" in result.err
    assert cli("check", "flows:nothing").code == 3
    (cli.dir / "broken.py").write_text("def f(:")
    assert cli("check", "broken.py").code == 1
    assert cli("check", "bro:").code == 2


def test_a_workflow_that_the_database_knows_by_name(cli):
    """The bare name is enough once it was started."""
    cli("start", "flows:sync", "--app-dir", str(cli.dir))
    result = cli("check", "sync", "--json", "--app-dir", "/")
    assert (result.code, result.document) == (0, [])
