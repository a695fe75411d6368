"""``doctor --hosts``: every check on every host at once, and what compares them; refuses to change anything.

With `--comm` ranks are started on all of them, for seconds.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from ddplaunch.checks.all_checks import measured, run_across, run_measured
from ddplaunch.checks.check import Outcome
from ddplaunch.cli.comm import Asked as CommAsked
from ddplaunch.cli.comm import between
from ddplaunch.cli.configuration import with_configuration, working_directory
from ddplaunch.cli.hosts_flags import Asked, hosts_of
from ddplaunch.cli.hosts_prepare import by_host, facts_of, once
from ddplaunch.cli.prepare import check
from ddplaunch.cli.say import answer, answer_json
from ddplaunch.cli.target import parse_target
from ddplaunch.errors import ExitStatus
from ddplaunch.hosts.gather import meet
from ddplaunch.hosts.links import Links, allow_many
from ddplaunch.launch.hosts_plan import Meeting
from ddplaunch.launch.options import Options
from ddplaunch.ui.comm_view import comm_json, comm_text
from ddplaunch.ui.hosts_view import hosts_json, hosts_text
from ddplaunch.ui.streams import styled, unicode_ok, width
from ddplaunch.values import Unavailable

_NO_LAUNCH = Unavailable("hosts are checked without a launch; `ddplaunch run --hosts … --dry-run` checks one")


def doctor_hosts(
    options: Options,
    asked: Asked,
    script: list[str] | None,
    profile: str | None,
    json: bool,
    collectives: CommAsked | None,
) -> int:
    """Check all hosts and show them side by side; findings are said once for all the hosts that they are about.

    ``collectives`` is what `--comm` asked for, None where it was not given.
    """
    options = with_configuration(options, profile, working_directory())
    target = parse_target(script) if script is not None else None
    hosts = hosts_of(asked)
    allow_many(len(hosts))
    if target is None and asked.chdir is None:
        asked = replace(asked, chdir="/")  # without a launch no directory is wanted
    with Links() as links:
        gathered = facts_of(links, hosts, asked, options, target, torch=True)
        reports = gathered.reports
        ignored = {item.value for item in options.ignore}
        across = run_across(reports, ignored) if reports else ()
        own = [check(options, _NO_LAUNCH, report.facts, Unavailable(_NO_LAUNCH.reason)) for report in reports]
        found = by_host(gathered.missing)
        found += [(None, finding) for outcome in across for finding in outcome.findings]
        for report, outcomes in zip(reports, own, strict=True):
            found += [(report.name, each) for outcome in outcomes for each in outcome.findings]
        if len(reports) > 1:
            port = options.master_port.value if options.master_port else None
            meeting = meet(links, gathered.links, port, options.master_addr.value if options.master_addr else None)
            found += [] if isinstance(meeting, Meeting) else [(None, finding) for finding in meeting]
        comm = None
        if collectives is not None and reports:
            facts = [report.facts for report in reports]
            comm = between(links, gathered.links, facts, options, asked.python or sys.executable, collectives)
            across += run_measured(comm, ignored)
            found += [(None, finding) for outcome in across[-len(measured()) :] for finding in outcome.findings]
    said = once(found, len(hosts))
    if json:
        answer_json(hosts_json(reports, own, across, said) | ({} if comm is None else {"comm": comm_json(comm)}))
    else:
        passed = _passed(across) + sum(_passed(outcomes) for outcomes in own)
        columns, colours, unicode = width(sys.stdout), styled(sys.stdout), unicode_ok(sys.stdout)
        picture = () if comm is None else comm_text(comm, columns, colours)
        answer(hosts_text(reports, gathered.missing, said, passed, columns, colours, unicode=unicode, picture=picture))
    crashed = any(outcome.status == "crashed" for outcomes in (across, *own) for outcome in outcomes)
    return ExitStatus.FINDINGS if said or crashed else ExitStatus.DONE


def _passed(outcomes: tuple[Outcome, ...]) -> int:
    return sum(outcome.status == "passed" for outcome in outcomes)
