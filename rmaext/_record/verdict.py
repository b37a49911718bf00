# SPDX-License-Identifier: BSD-3-Clause
"""Who waits for whom: the cycle, or the rank that others wait for, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from .job import LONG, Absent, Foreign, Job, Wait, names, runs, world_ranks
from .snapshot import Notified, Snapshot

__all__ = ["Finding", "idle", "span", "verdict"]


_MOST = 8  # ranks that are told apart in a sentence
_ORDER = ("cycle", "missing", "nobody", "unclear", "turn", "fine")
_PLURALS = (
    ("its process is", "their processes are"),
    ("it computes, or waits", "they compute, or wait"),
    ("or has no record", "or have no record"),
    ("it has", "they have"),
    ("yet, is on another node", "yet, are on another node"),
    ("keeps none", "keep none"),
    ("its record", "their records"),
)


@dataclass
class Finding:
    """One sentence of a verdict.

    `kind` is "cycle", "missing" (ranks that others wait for), "nobody" (a wait for what any
    rank could send), "unclear", "turn" (who waits for ranks of an earlier finding) or "fine".
    """

    kind: str
    text: str
    waiting: list[int] = field(default_factory=list)  # ranks in MPI_COMM_WORLD
    culprits: list[int] = field(default_factory=list)


@dataclass
class _Group:
    """Waits for the same, by the same ranks."""

    waits: list[Wait]

    @property
    def first(self) -> Wait:
        return self.waits[0]

    @property
    def ranks(self) -> list[int]:
        """Those of the job; none if all are another's."""
        return world_ranks([wait.of for wait in self.waits])

    def says(self, all_others: bool = False) -> str:
        """Return who waits where, and since when."""
        who = names([wait.of for wait in self.waits])
        if all_others:
            who = "all other ranks" if len(self.ranks) > 1 else f"the other rank ({self.ranks[0]})"
        wait = "waits" if len({(wait.of.host, wait.of.pid) for wait in self.waits}) == 1 else "wait"
        return f"{who} {wait} {self.first.what} since {span(max(w.seconds for w in self.waits))}"


def span(seconds: float) -> str:
    """Return a time in words: "0.3 s", "12 s", "5 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def idle(one: Snapshot | Absent) -> str:
    """Return what a rank does that is in no wait: "is stopped", "is in user code at ..."."""
    return _numbered(_idle(one), [one])


def _idle(one: Snapshot | Absent) -> str:
    if isinstance(one, Absent):
        if one.elsewhere:
            return "is on another node, or has no record here: look there, too (--launcher)"
        why = "has ended, keeps none (RMAEXT_RECORD=0), or its record could not be read "
        why += "(`python -m rmaext why PID`, of that process, says why)"
        if not one.met:
            why = f"has made no window yet, is on another node, {why}"
        return f"has no record here: it {why}"
    if one.raised:
        return f"has ended by {one.raised}"
    if not one.process:
        return "has ended: its process is gone"
    if one.process == "T":
        return f"is stopped by a signal (kill -CONT {one.pid} lets it go on)"
    if one.process == "t":
        return "is stopped by a debugger"
    at = f" at {one.line}" if one.line else ""
    if one.state != "runs":
        return f"is at the end of its program{at}"
    if one.process == "D":
        return f"is in a system call that cannot be interrupted{at}"
    if at:
        return f"is in {'a call of rmaext' if one.called else 'user code'}{at}"
    return "is in no call of rmaext: it computes, or waits elsewhere (MPI, a file)"


def _condition(job: Job, wait: Wait, one: Snapshot | Absent) -> str:
    """Return what a rank does that another waits for."""
    blocker = _blocker(job, wait, one)
    if blocker is not None:
        site = blocker.thread.site
        return f"waits {blocker.what}" + (f" at {site}" if site else "")
    tid = _holder(wait, one) if isinstance(one, Snapshot) and runs(one) else 0
    if tid and isinstance(one, Snapshot) and tid != one.own:
        return f"is in no call of rmaext in the thread that holds it, {tid}"
    return _idle(one)


def verdict(job: Job) -> list[Finding]:
    """Return what keeps a job from going on; a finding of kind "fine" if nothing does."""
    waits = [wait for wait in job.long() if runs(wait.of)]
    groups = _groups(waits)
    needs = {i: _blockers(job, groups, group) for i, group in enumerate(groups)}
    findings: list[Finding] = []
    done: set[int] = set()
    while cycle := _cycle({i: js for i, js in needs.items() if i not in done}):
        done |= set(cycle)
        if any(groups[i].ranks for i in cycle):
            findings.append(_of_cycle(job, [groups[i] for i in cycle]))
    for i, group in enumerate(groups):
        if i in done or not group.ranks:  # or another job's, whose verdict has it
            continue
        if group.first.any:
            findings.append(_of_any(job, group))
        elif not group.first.blames:
            findings.append(_unclear(job, group))
        elif _is_in_turn(job, group, needs[i]):
            findings.append(_of_turn(job, group))
        else:
            findings.append(_of_missing(job, group))
    findings.sort(key=lambda finding: _ORDER.index(finding.kind))
    return findings or [_fine(job)]


# -- the graph -----------------------------------------------------------------------


def _groups(waits: Iterable[Wait]) -> list[_Group]:
    """Return the waits that have the same words and needs together."""
    found: dict[object, _Group] = {}
    for wait in waits:
        needs = ((n.host, n.pid) if isinstance(n, Snapshot) else n for n in wait.needs)
        key = wait.what, None if wait.any else tuple(needs)
        found.setdefault(key, _Group([])).waits.append(wait)
    return list(found.values())


def _blockers(job: Job, groups: Sequence[_Group], group: _Group) -> set[int]:
    """Return the groups that a group waits for in turn: nobody, if any rank may end it."""
    if group.first.any or not group.first.blames:
        return set()
    index = {id(wait): i for i, one in enumerate(groups) for wait in one.waits}
    blockers = (_blocker(job, group.first, need) for need in group.first.needs)
    return {index[id(wait)] for wait in blockers if wait is not None}


def _blocker(job: Job, wait: Wait, need: Snapshot | Absent) -> Wait | None:
    if isinstance(need, Absent):
        return None
    return job.blocked(need, _holder(wait, need))


def _holder(wait: Wait, need: Snapshot) -> int:
    """Return the thread that holds the lock; 0 if it has ended, or there is no lock."""
    tid = wait.held.get(need.pid, (0, 0.0))[0]
    return tid if any(t.tid == tid and not t.ended for t in need.threads) else 0


def _cycle(graph: dict[int, set[int]]) -> list[int]:
    try:
        TopologicalSorter({i: js & set(graph) for i, js in graph.items()}).prepare()
    except CycleError as exc:
        found: list[int] = exc.args[1][:0:-1]
        return found[found.index(min(found)) :] + found[: found.index(min(found))]
    return []


def _is_in_turn(job: Job, group: _Group, blockers: set[int]) -> bool:
    """Tell whether all that it waits for wait themselves."""
    return bool(blockers) and all(_blocker(job, group.first, n) for n in group.first.needs)


# -- sentences ------------------------------------------------------------------------


def _begun(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _holders(group: _Group) -> str:
    """Return who holds the lock that it waits for."""
    held = group.first.held
    holders = [n for n in group.first.needs if isinstance(n, Snapshot) and n.pid in held]
    since = max(held[one.pid][1] for one in holders)
    return f"held by {names(holders)} since {span(since)}"


def _of_cycle(job: Job, groups: Sequence[_Group]) -> Finding:
    parts, waiting, culprits = [], set(), set()
    for before, group in zip([groups[-1], *groups], groups, strict=False):
        waiting |= set(group.ranks)
        held_up = (_blocker(job, before.first, need) for need in before.first.needs)
        culprits |= set(world_ranks(w.of for w in held_up if w in group.waits))
        if group.first.held:
            parts.append(f"{group.says()}, {_holders(group)}")
        else:
            come = _numbered("has not come", group.first.needs)
            parts.append(f"{group.says()}, to which {names(group.first.needs)} {come}")
    text = "a cycle, which nothing will end: " + "; ".join(parts)
    collective = all(group.first.thread.kind in ("meeting", "mpi") for group in groups)
    if collective and len(groups) == 2:
        fewer, more = sorted(groups, key=lambda group: len(group.waits))
        if len(fewer.waits) < len(more.waits):
            culprits = set(fewer.ranks)
            there = names([wait.of for wait in fewer.waits])
            text += f". {_begun(there)} called another collective than the others"
        else:
            text += ". They called different collectives"
    return Finding("cycle", text, sorted(waiting), sorted(culprits))


def _of_missing(job: Job, group: _Group) -> Finding:
    wait = group.first
    missing = [need for need in wait.needs if _blocker(job, wait, need) is None]
    members = {one.rank for one in job.members}
    everyone = set(group.ranks) | set(world_ranks(missing)) >= members and len(group.ranks) > 1
    everyone &= not any(
        isinstance(one, Foreign) for one in [*missing, *(w.of for w in group.waits)]
    )
    text = group.says(everyone)
    if wait.held:
        text += f", {_holders(group)}; " + _conditions(job, wait, missing, "it")
    elif wait.thread.kind in ("meeting", "mpi"):
        text += " for " + _conditions(job, wait, missing)
    else:
        text += ": " + _conditions(job, wait, missing, "it")
    return Finding("missing", text, group.ranks, world_ranks(missing))


def _conditions(
    job: Job, wait: Wait | None, ones: Sequence[Snapshot | Absent], it: str = ""
) -> str:
    """Return ranks and what each does, those that do the same together."""
    found: dict[str, list[Snapshot | Absent]] = {}
    for one in ones:
        found.setdefault(_condition(job, wait, one) if wait else _idle(one), []).append(one)
    link = " " if it else ", which "
    parts = []
    for words, who in list(found.items())[:_MOST]:
        parts.append(f"{names(who)}{link}{_numbered(words, who)}")
    if len(found) > _MOST:
        parts.append(f"{len(found) - _MOST} more")
    return ("; " if it else ", and for ").join(parts)


def _numbered(words: str, ones: Sequence[Snapshot | Absent]) -> str:
    """Return what a rank does in the plural, if these are several."""
    if sum(len(one.ranks) if isinstance(one, Absent) else 1 for one in ones) == 1:
        return words
    verb, _, rest = words.partition(" ")
    verb = {"is": "are", "has": "have", "waits": "wait"}[verb]
    for one, more in _PLURALS:
        rest = rest.replace(one, more)
    return f"{verb} {rest}"


def _of_any(job: Job, group: _Group) -> Finding:
    wait = group.first
    text = group.says()
    if wait.thread.kind == "notify":
        text += f": {_notified(job, wait)}"
    elif wait.thread.kind == "container":
        text += ": any other rank may end that"
    else:
        text += ": no rank has written there what it waits for"
    needs = {id(need): need for one in group.waits for need in one.needs}
    others: list[Snapshot | Absent] = list(needs.values())
    ready = [one for one in others if runs(one) and isinstance(one, Snapshot)]
    if others and not any(job.blocked(one) is None for one in ready):
        text += "; no rank is left that could"
    if others:
        text += f". {_begun(_conditions(job, wait, others, 'it'))}"
    return Finding("nobody", text, group.ranks, group.ranks)


def _notified(job: Job, wait: Wait) -> str:
    """Return who has sent to the slots, who has sent to others, and who to none."""
    window, (_, slots) = job.window(wait.of, wait.thread.window), wait.thread.slots()
    if window is None:
        return "its window is not known"
    name = window.comm, window.number, window.self
    sent = [
        (one, note)
        for one in [*job.members, *job.foreign]
        for note in one.notified
        if (note.comm, note.number, note.target) == name
    ]
    sent.sort(key=lambda pair: pair[0].now - pair[1].last)
    here = [pair for pair in sent if pair[1].slot in slots]
    senders = {id(one) for one, _ in here}
    parts: list[str] = []
    for one, note in here[:_MOST]:
        which = _which(note, slots)
        did = f"has notified {which}" if parts else f"was the last to notify {which},"
        parts.append(f"{names([one])} {did} {_often(one, note)}")
    if len(here) > _MOST:
        parts.append(f"{len(here) - _MOST} more before")
    never = [one for one in wait.needs if isinstance(one, Snapshot) and id(one) not in senders]
    never += [wait.of] if id(wait.of) not in senders and not wait.needs else []
    if here:
        parts += [f"{names(never)} never did"] if never else []
    else:
        parts.append(f"no rank has notified {'it' if len(slots) == 1 else 'any of them'}")
    most = max((note.calls for _, note in here), default=0)
    silent = {id(one) for one in never}
    behind = {id(one) for one, note in here if note.calls < most}
    latest: dict[int, tuple[Snapshot, Notified]] = {}  # of each rank, of other slots
    for one, note in sent:
        if note.slot not in slots and (id(one) in silent or id(one) in behind):
            latest.setdefault(id(one), (one, note))
    for one, note in [*latest.values()][:_MOST]:
        also = "instead" if id(one) in silent else "too"
        parts.append(f"{names([one])} has notified {_which(note)} {also}, {_often(one, note)}")
    return "; ".join(parts)


def _which(note: Notified, slots: Sequence[int] = ()) -> str:
    """Return the slot that was notified, beside those that are waited for."""
    if len(slots) == 1:
        return "it"
    return f"slot {note.slot}" if note.slot >= 0 else "slots that are not known"


def _often(one: Snapshot, note: Notified) -> str:
    """Return how often, when last and from where a rank has notified a slot."""
    parts = ["once" if note.calls == 1 else f"{note.calls} times"]
    if note.last:
        ago = f"{span(max(one.now - note.last, 0) / 1e9)} ago"
        parts.append(ago if note.calls == 1 else f"the last one {ago}")
    if note.site:
        parts.append(f"{'' if note.calls == 1 else 'first '}at {note.site}")
    return ", ".join(parts)


def _of_turn(job: Job, group: _Group) -> Finding:
    wait = group.first
    held = f", {_holders(group)}" if wait.held else f" for {names(wait.needs)}"
    text = f"in turn, {group.says()}{held}: {_conditions(job, wait, wait.needs, 'it')}"
    return Finding("turn", text, group.ranks)


def _unclear(job: Job, group: _Group) -> Finding:
    wait, suspects = group.first, group.first.needs
    if wait.all_come:
        words = "all ranks have come, so that MPI or the network is slow"
    elif wait.thread.kind in ("meeting", "mpi"):
        words = "its communicator is not known yet"
        suspects = [*(one for one in job.members if job.blocked(one) is None), *job.gone()]
        if suspects:
            words += f"; {_conditions(job, None, suspects, 'it')}"
        else:
            words += "; all ranks here wait in rmaext, perhaps over different communicators"
    elif wait.thread.kind == "lock":
        words = "no process here holds it"
    elif wait.on_device:
        words = "it comes behind the work of the array's stream: is a kernel still at work there?"
    elif wait.needs:
        words = f"{_conditions(job, wait, wait.needs, 'it')}. Its progress thread should answer"
        words += " meanwhile, unless RMAEXT_PROGRESS=0 is set or the network fails"
        window = job.window(wait.of, wait.thread.window)
        if window is not None and " on cuda:" in window.dtype:
            words += "; or the device with the memory is at work: is a kernel still running there?"
    else:
        words = "nothing more is known of it"
    return Finding("unclear", f"{group.says()}: {words}", group.ranks, world_ranks(suspects))


def _fine(job: Job) -> Finding:
    text = f"no rank waits longer than {LONG:g} s"
    raised = [one for one in job.members if one.raised]
    others = [one for one in job.members if not one.raised and not runs(one)]
    halted: list[Snapshot | Absent] = [*raised, *others, *job.gone()]
    if halted:
        text += f"; {_conditions(job, None, halted, 'it')}"
    if raised and len(raised) < len(job.members):
        text += ". Calls of MPI that wait for such a rank never end: python -m mpi4py PROGRAM.py "
        text += "ends the job with its first error"
    return Finding("fine", text)
