#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Plant faults, one at a time, and see whether the world finds them (`make sim-faults`).

    faults.py [--seconds N] [--orders] [WORD ...]

Each fault changes one place of csrc, or of a loop of Python's that stands in the world once more:
a protocol forgets something that it is there for. The world that knows the protocol
(tests/c/am/world.c, unless the fault names another) runs with it until a seed fails, for N seconds
at most (300). A line for each says which seed found it, by what, and when. The status is 1 if one
was not found. With --orders it tries all orders of small programs instead, and says which path
found it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "world"
CSRC = ROOT / "csrc"
WORLDS = ["am/world", "shm/locks", "xfer/meetings"]
FLAGS = ["-std=c11", "-w", "-O1", "-g", "-fvisibility=hidden", "-ffp-contract=off", "-Itests/c"]


class Fault(NamedTuple):
    """What stands in a file, and what in place of it; and the world that is to find it."""

    name: str
    file: str
    old: str
    new: str
    world: str = WORLDS[0]


FAULTS = [
    Fault(
        "a credit is not given back",
        "am/message.c",
        "	buffer->peer->line->requests--;\n",
        "	buffer->peer->line->requests -= buffer->generation % 7 != 0;\n",
    ),
    Fault(
        "a bulk operation's credits are counted twice",
        "am/message.c",
        "	buffer->peer->line->bulks -= buffer->bulk;\n",
        "	buffer->peer->line->bulks -= buffer->bulk && buffer->generation % 5;\n",
    ),
    Fault(
        "a notification does not wait for its write",
        "am/send_queue.c",
        "	note->held = true;\n",
        "	note->held = false;\n",
    ),
    Fault(
        "a notification shares a message before its write is there",
        "am/pack.c",
        " && !next->held;\n",
        ";\n",
    ),
    Fault(
        "who gives up a write that notifies leaves its message in line",
        "am/replies.c",
        "	note = atomic_load(&op->note);\n	if (note)\n",
        "	note = NULL;\n	if (note)\n",
    ),
    Fault(
        "a reply is believed whatever its generation",
        "am/replies.c",
        "	       buffer->generation == reply.id >> 32;",
        "	       true;",
    ),
    Fault(
        "a buffer is free before it was sent",
        "am/message.c",
        "	if (buffer->sent)\n		send_buffer_free(am, buffer);",
        "	send_buffer_free(am, buffer);",
    ),
    Fault(
        "other messages pass a bulk operation",
        "am/send_queue.c",
        "	return rmx_op_is_bulk(op) ? !peer->line->requests",
        "	return rmx_op_is_bulk(op) ? peer->line->requests < 2",
    ),
    Fault(
        "the part that notifies does not wait for the others",
        "am/send_queue.c",
        "		       peer->line->bulks < RMX_CREDITS && op->notify < 0;",
        "		       peer->line->bulks < RMX_CREDITS;",
    ),
    Fault(
        "a message that the network does not take is sent for all that",
        "am/send_queue.c",
        "	if (ret) {\n		rmx_message_drop(f->am, buffer);\n		return ret;",
        "	if (ret && ret != -FI_EAGAIN) {\n		rmx_message_drop(f->am, buffer);\n"
        "		return ret;",
    ),
    Fault(
        "a line that stalled is not tried again",
        "am/send_queue.c",
        "	atomic_store(&am->stalled, peer);\n",
        "	if (peer->line->heard % 3)\n		atomic_store(&am->stalled, peer);\n",
    ),
    Fault(
        "an answered message does not move the line",
        "am/replies.c",
        "		rmx_message_done(am, buffer);\n		rmx_message_pump(f, peer);",
        "		rmx_message_done(am, buffer);",
    ),
    Fault(
        "results go to the operation's beginning, whatever part they are of",
        "am/pack.c",
        "		memcpy(op->local + buffer->some.part, results, buffer->results);",
        "		memcpy(op->local, results, buffer->results);",
    ),
    Fault(
        "a reply that waits loses its place",
        "am/dispatch.c",
        "		rmx_receive_enqueue(f->am, message, RMX_WAITING);\n",
        "		reply_end(f, message);\n",
    ),
    Fault(
        "replies are counted once too often",
        "am/dispatch.c",
        "	message->peer->line->replies += first;\n",
        "	message->peer->line->replies++;\n",
    ),
    Fault(
        "a receive that was refused is forgotten",
        "am/receive.c",
        "		rmx_receive_enqueue(am, message, RMX_RECEIVING);\n		return 0;",
        "		return 0;",
    ),
    Fault(
        "a failed receive is not posted anew",
        "am/dispatch.c",
        "			rmx_receive_failed(am, message);\n",
        "			message->state = RMX_FREE;\n",
    ),
    Fault(
        "a copy counts as applied once it is sent",
        "am/replies.c",
        "	buffer->sent = true;\n	if (failure && buffer->op)",
        "	buffer->sent = true;\n	if (buffer->op && !buffer->results)\n"
        "		ops_end(buffer, NULL);\n	if (failure && buffer->op)",
    ),
    Fault(
        "a message that is not sent yet fails with its connection, and again by itself",
        "am/replies.c",
        "buffer->state == RMX_ASKING && buffer->sent && buffer->op &&",
        "buffer->state == RMX_ASKING && buffer->op &&",
    ),
    Fault(
        "a put counts as applied once it is posted",
        "xfer/completion.c",
        "	if (op->ended) {\n		COUNT(&op->completed);\n		rmx_op_part_ended(op);",
        "	if (op->ended) {\n		COUNT(&op->completed);\n"
        "		op->open = 1;\n		rmx_op_part_ended(op);",
    ),
    Fault(
        "a failed chunk is a success",
        "xfer/completion.c",
        "	if (failure) {\n		rmx_op_failed(op, failure);",
        "	if (failure && op->rank % 2) {\n		rmx_op_failed(op, failure);",
    ),
    Fault(
        "a chunk that the network did not take counts as posted",
        "xfer/post.c",
        "	op->sent--;\n	op->posted = at;\n",
        "	op->sent--;\n",
    ),
    Fault(
        "a context is lost when the network takes nothing",
        "xfer/post.c",
        "	if (context != op->context)\n		rmx_context_give(f, peer, context);\n"
        "	return ret;",
        "	return ret;",
    ),
    Fault(
        "a context comes back to the list before it is out of it",
        "xfer/context.c",
        "			old, FREE_COUNT(old) - 1,\n",
        "			old, FREE_COUNT(old),\n",
    ),
    Fault(
        "a request in the backlog is not posted on",
        "xfer/post.c",
        "ret == -FI_EBUSY)\n			return ret;",
        "ret == -FI_EBUSY)\n			return op->posted ? 0 : ret;",
    ),
    Fault(
        "a flush is content with the round that it began in",
        "win/pending.h",
        "		if (rmx_counted_in(now, round + 1))\n			return false;",
        "		if (rmx_counted_in(now, round + 1))\n			return true;",
    ),
    Fault(
        "a flush takes no round into account",
        "win/pending.h",
        "		if (rounds > 1 || !rmx_counted(now))",
        "		if (rounds >= 1 || !rmx_counted_in(now, round))",
    ),
    Fault(
        "what is under way to the dead is kept",
        "xfer/flush.c",
        "	if (w->fabric)\n		w->fabric->hooks->forget(w, rank);",
        "	(void)w, (void)rank;",
    ),
    Fault(
        "a request to the dead waits for ever",
        "net/liveness.c",
        "	if (peer && atomic_load(&peer->gone))\n		return rmx_fail(-FI_ENOTCONN",
        "	if (!peer)\n		return rmx_fail(-FI_ENOTCONN",
    ),
    Fault(
        "the line to the dead goes on",
        "am/replies.c",
        "	rmx_op_unqueue(op);\n	for (struct rmx_send_buffer *buffer",
        "	for (struct rmx_send_buffer *buffer",
    ),
    Fault(
        "one who gave up leaves its operation in the message",
        "am/replies.c",
        "	*link = buffer->shared ? NULL : op->next;\n	op->flying--;\n	if (!buffer->op)",
        "	op->flying--;\n	if (!buffer->op)",
    ),
    Fault(
        "an exchange compares nothing",
        "dtype/atomic_ops.c",
        "		while (!((old ^ wanted) & mask) &&",
        "		while ((old || !((old ^ wanted) & mask)) &&",
    ),
    Fault(
        "a reply is sent to whoever asked last",
        "am/dispatch.c",
        "	const uint64_t to = message->peer->addr;",
        "	static uint64_t last;\n	const uint64_t to = last ? last : message->peer->addr;\n\n"
        "	last = message->peer->addr;",
    ),
    Fault(
        "a notification comes first",
        "am/items.c",
        "	ret = item_is_row(it) ? row_apply(",
        "	if (item_notifies(it) && it->is.count > 8) {\n"
        "		rmx_notify_add(w, w->self, it->is.slot, 1);\n		return 0;\n	}\n"
        "	ret = item_is_row(it) ? row_apply(",
    ),
    Fault(
        "a buffer has the same generation again",
        "am/message.c",
        "	buffer->generation++;\n",
        "",
    ),
    Fault(
        "a part begins one place late",
        "dtype/places.c",
        "				rmx_place_at(p, some->first + i).offset;",
        "				rmx_place_at(p, some->first + (i ? i - 1 : i)).offset;",
    ),
    Fault(
        "an element goes to the target of the one before",
        "exec/many_per_target.c",
        "		b->order[at] = (uint32_t)(i - b->start);",
        "		b->order[at] = (uint32_t)(i > b->start ? i - b->start - 1 : 0);",
    ),
    Fault(
        "a request of many has ended with its first part",
        "xfer/completion.c",
        "	if (atomic_fetch_sub(&siblings->left, 1) == 1)",
        "	if (atomic_fetch_sub(&siblings->left, 1) > 0 && ended)",
    ),
    Fault(
        "a request has ended with its last chunk but one",
        "xfer/completion.c",
        "	if (atomic_fetch_sub(&op->open, 1) > 1)\n		return;",
        "	if (atomic_fetch_sub(&op->open, 1) > 2)\n		return;",
    ),
    Fault(
        "an operation in parts settles while some are in line",
        "xfer/completion.c",
        "	if (op->queued || op->flying)",
        "	if (op->flying)",
    ),
    Fault(
        "an operation settles while some of its parts fly",
        "xfer/completion.c",
        "	if (op->queued || op->flying)",
        "	if (op->queued || op->flying > 1)",
    ),
    Fault(
        "the end of a request that failed is not counted",
        "xfer/completion.c",
        "	rmx_pending_sub(target, share);\n	atomic_fetch_add",
        "	if (!atomic_load(&target->member->peer->gone))\n"
        "		rmx_pending_sub(target, share);\n	atomic_fetch_add",
    ),
    Fault(
        "an operation on many leaves what was sent when one fails",
        "xfer/siblings.c",
        "			op->fabric->hooks->give_up(op);\n",
        "			(void)op;\n",
    ),
    Fault(
        "messages pass each other in the line",
        "am/send_queue.c",
        "	*line->queue_end = op;\n	line->queue_end = &op->next;",
        "	op->next = line->queue;\n	line->queue = op;\n	if (!op->next)\n"
        "		line->queue_end = &op->next;",
    ),
    Fault(
        "a writer enters beside others",
        "shm/ticket_lock.c",
        "	if (turn == l->ticket && !old) {",
        "	if (turn == l->ticket) {",
        WORLDS[1],
    ),
    Fault(
        "a reader does not wait for its turn",
        "shm/ticket_lock.c",
        "	if (!exclusive && turn == l->ticket)\n		return reader_enter(l, e);",
        "	if (!exclusive)\n		return reader_enter(l, e);",
        WORLDS[1],
    ),
    Fault(
        "who joins does not wait for the writer",
        "shm/ticket_lock.c",
        "		l->inside = inside < RMX_LOCK_WRITER ? 1 : RMAEXT_LOCK_JOINS;",
        "		l->inside = 1;",
        WORLDS[1],
    ),
    Fault(
        "a writer keeps the turn as it leaves",
        "shm/ticket_lock.c",
        "	block_add(l, e, l->words + TURN, 1);\n	slot_change(l, e, 0, 0);",
        "	if (l->ticket % 7)\n"
        "		block_add(l, e, l->words + TURN, 1);\n"
        "	slot_change(l, e, 0, 0);",
        WORLDS[1],
    ),
    Fault(
        "a writer that was not alone stays counted",
        "shm/ticket_lock.c",
        "	block_add(l, e, l->words + INSIDE, -RMX_LOCK_WRITER);\n"
        "	slot_change(l, e, RMAEXT_SLOT_QUEUED, 0);",
        "	slot_change(l, e, RMAEXT_SLOT_QUEUED, 0);",
        WORLDS[1],
    ),
    Fault(
        "a ticket is passed on though its rank has taken it up",
        "shm/ticket_lock.c",
        "		    (value ^ seen) & ~RMAEXT_SLOT_READERS)",
        "		    !(value & RMAEXT_SLOT_KINDS))",
        WORLDS[1],
    ),
    Fault(
        "an abandoned ticket is taken up after it was passed on",
        "shm/ticket_lock.c",
        "		if (!exchange_is_answered(e) ||\n"
        "		    (value & ~RMAEXT_SLOT_READERS) != from)\n"
        "			return false;",
        "		if (!exchange_is_answered(e))\n			return false;",
        WORLDS[1],
    ),
    Fault(
        "who passes a ticket on does not let the next one have its turn",
        "shm/ticket_lock.c",
        "	block_swap(l, e, l->words + TURN, ticket, ticket + 1);\n",
        "	(void)ticket;\n",
        WORLDS[1],
    ),
    Fault(
        "who passes a ticket on leaves it in the slot",
        "shm/ticket_lock.c",
        "	} while (!block_swap(l, e, slot, value, value & RMAEXT_SLOT_READERS));\n",
        "	} while (!block_swap(l, e, slot, value, value));\n",
        WORLDS[1],
    ),
    Fault(
        "who gives up stays in the queue",
        "shm/ticket_lock.c",
        "	else if (l->kind == RMAEXT_SLOT_QUEUED)\n"
        "		slot_change(l, e, RMAEXT_SLOT_ABANDONED, 0);",
        "	else if (l->kind == RMAEXT_SLOT_QUEUED && l->ticket % 3)\n"
        "		slot_change(l, e, RMAEXT_SLOT_ABANDONED, 0);",
        WORLDS[1],
    ),
    Fault(
        "a reader's slot is not given back",
        "shm/ticket_lock.c",
        "			  -(int64_t)RMAEXT_SLOT_READER);",
        "			  l->rank ? -(int64_t)RMAEXT_SLOT_READER : 0);",
        WORLDS[1],
    ),
    Fault(
        "the owner changes before the answers have come",
        "shm/ticket_lock.c",
        "		l->ticket = e->ticket;\n		l->kind = e->kind;\n",
        "		l->ticket = e->ticket;\n",
        WORLDS[1],
    ),
    Fault(
        "one that died in the queue is waited for",
        "shm/lock_judge.c",
        "			if (kind != RMAEXT_SLOT_ABANDONED && !look->gone[r])",
        "			if (kind != RMAEXT_SLOT_ABANDONED)",
        WORLDS[1],
    ),
    Fault(
        "one that lives is taken for one that has given up",
        "shm/lock_judge.c",
        "			if (kind != RMAEXT_SLOT_ABANDONED && !look->gone[r])",
        "			if (kind != RMAEXT_SLOT_ABANDONED && !look->gone[r] && r % 2)",
        WORLDS[1],
    ),
    Fault(
        "a dead reader is not missed",
        "shm/lock_judge.c",
        "	return readers < look->inside;",
        "	return readers < look->inside && readers > 1;",
        WORLDS[1],
    ),
    Fault(
        "one that died inside is not missed",
        "shm/lock_judge.c",
        "		if (!look->gone[r] ||\n",
        "		if (!look->gone[r] || slot_kind(look, r) == RMAEXT_SLOT_ACTIVE ||\n",
        WORLDS[1],
    ),
    Fault(
        "nobody waits for one that is busy",
        "shm/lock_judge.c",
        "			busy = busy || !look->gone[r];",
        "			busy = busy || (!look->gone[r] && look->turn % 2);",
        WORLDS[1],
    ),
    Fault(
        "a reader of the dead is blamed on a rank that was never there",
        "shm/lock_judge.c",
        "		     !(readers && look->slots[r] & RMAEXT_SLOT_READERS)))",
        "		     !(readers || look->slots[r] & RMAEXT_SLOT_READERS)))",
        WORLDS[1],
    ),
    Fault(
        "who holds a lock queues up for another behind those who wait",
        "shm/locks.c",
        "	bool joins = !exclusive && did[t->number].held;",
        "	bool joins = false;",
        WORLDS[1],
    ),
    Fault(
        "a rank leaves one round early",
        "xfer/network_barrier.c",
        "		if (++b->round < b->rounds)",
        "		if (++b->round + (b->rounds > 1) < b->rounds)",
        WORLDS[2],
    ),
    Fault(
        "the words of a step may be of an earlier meeting",
        "xfer/network_barrier.c",
        "		if (step >> NUMBER_SHIFT || rest >> NUMBER_SHIFT)\n			return;",
        "		if (rest >> NUMBER_SHIFT)\n			return;",
        WORLDS[2],
    ),
    Fault(
        "what was heard may be of an earlier meeting",
        "xfer/network_barrier.c",
        "		if (step >> NUMBER_SHIFT || rest >> NUMBER_SHIFT)\n			return;",
        "		if (step >> NUMBER_SHIFT)\n			return;",
        WORLDS[2],
    ),
    Fault(
        "two meetings have the same places",
        "xfer/network_barrier.c",
        "	       ((b->number & 1) * ROUNDS + b->round) * sizeof(struct words);",
        "	       b->round * sizeof(struct words);",
        WORLDS[2],
    ),
    Fault(
        "different steps are not told on",
        "xfer/network_barrier.c",
        "	atomic_store(&said->rest, number | b->differ | b->value);",
        "	atomic_store(&said->rest, number | b->value);",
        WORLDS[2],
    ),
    Fault(
        "a rank tells its own value only",
        "xfer/network_barrier.c",
        "		b->value = rest > b->value ? rest : b->value;",
        "		b->value = b->round ? b->value : rest > b->value ? rest : b->value;",
        WORLDS[2],
    ),
    Fault(
        "nobody takes the meeting of a rank that is away further",
        "xfer/network_barrier.c",
        "		if (atomic_load(&b->state) != INSIDE ||\n",
        "		if (b->rank % 2 || atomic_load(&b->state) != INSIDE ||\n",
        WORLDS[2],
    ),
    Fault(
        "a meeting that is over stays counted",
        "xfer/network_barrier.c",
        "	atomic_fetch_sub(&b->fabric->meetings.inside, 1);\n	return true;",
        "	return true;",
        WORLDS[2],
    ),
    Fault(
        "words that the network did not take are not put again",
        "xfer/network_barrier.c",
        "	atomic_store(&b->unsent, ret == -FI_EAGAIN);",
        "	atomic_store(&b->unsent, false);\n	(void)ret;",
        WORLDS[2],
    ),
    Fault(
        "the answer to a question of an earlier round counts",
        "xfer/network_barrier.c",
        "	    offset == b->at + place(b, offsetof(struct memory, said)) &&\n",
        "	    (offset & 15) == ((b->at + place(b, offsetof(struct memory, said))) & 15) &&\n",
        WORLDS[2],
    ),
    Fault(
        "a rank that waits asks the one after it",
        "xfer/network_barrier.c",
        "		from = other(b, false);",
        "		from = other(b, true);",
        WORLDS[2],
    ),
    Fault(
        "a rank begins with what it knew of the last meeting",
        "xfer/network_barrier.c",
        "	b->differ = 0;\n",
        "	b->differ = b->differ && b->number % 3 == 0 ? DIFFER : 0;\n",
        WORLDS[2],
    ),
]


def compiled(csrc: Path, files: list[str], folder: Path) -> dict[str, Path]:
    """Return the objects of files of csrc, by their names there; and of worlds, by theirs."""

    def compile_one(file: str) -> tuple[str, Path]:
        source = ROOT / "tests" / "c" / f"{file}.c" if file in WORLDS else csrc / file
        made = folder / f"{file}.o"
        made.parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", *FLAGS, f"-I{csrc}", "-c", source, "-o", made]
        subprocess.run(command, cwd=ROOT, check=True)
        return file, made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(pool.map(compile_one, files))


def planted(fault: Fault, objects: dict[str, Path]) -> Path:
    """Return the world with a fault."""
    folder = BUILD / re.sub(r"\W+", "-", fault.name)
    shutil.rmtree(folder, ignore_errors=True)
    csrc = shutil.copytree(CSRC, folder / "csrc")
    ours = (csrc / fault.file).exists()
    if not ours:  # it is in a loop of Python's, which stands in the world once more
        shutil.copy(ROOT / "tests" / "c" / fault.file, csrc / fault.file)
    text = (csrc / fault.file).read_text()
    if text.count(fault.old) != 1:
        sys.exit(f"{fault.name}: csrc/{fault.file} has its place {text.count(fault.old)} times")
    (csrc / fault.file).write_text(text.replace(fault.old, fault.new))
    others = {*WORLDS} - {fault.world} if ours else {*WORLDS}
    needed = {file: made for file, made in objects.items() if file not in others}
    files = [*needed] if fault.file.endswith(".h") else [fault.file]
    linked = {**needed, **compiled(csrc, files, folder)}.values()
    subprocess.run(["cc", *linked, "-o", folder / "program", "-pthread", "-ldl"], check=True)
    return folder / "program"


def found(program: Path, mode: str, seconds: float) -> str:
    """Return what the world says, "" if it says nothing in time."""
    env = {**os.environ, "SEEDS": "100000000", "RMAEXT_LIBFABRIC": ""}
    command = [program, library(), mode]
    try:
        done = subprocess.run(
            command, env=env, text=True, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    said = done.stderr.strip().splitlines()
    if mode == "orders" and not done.returncode:
        return ""
    return said[0] if said else f"ended by signal {-done.returncode}"


def library() -> str:
    """Return some libfabric, which the C tests want although the world uses none."""
    roots = [*ROOT.glob(".venv*"), Path(sys.prefix)]
    places = [it for root in roots for it in root.glob("lib/*/libfabric.so.1")]
    if not places:
        sys.exit("there is no libfabric: make develop")
    return str(places[0])


def main() -> int:
    """Try them, and say which were found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300, help="for each; default: 300")
    parser.add_argument("--orders", action="store_true", help="of the worlds that try all orders")
    parser.add_argument("names", nargs="*", metavar="WORD", help="in world and name; default: all")
    options = parser.parse_args()
    shutil.rmtree(BUILD, ignore_errors=True)
    files = [str(path.relative_to(CSRC)) for path in sorted(CSRC.rglob("*.c"))]
    files = [file for file in files if not file.startswith("python/")]
    objects = compiled(CSRC, [*files, *WORLDS], BUILD / "sound")
    missed = 0
    wanted = [it for it in FAULTS if all(word in f"{it.world} {it.name}" for word in options.names)]
    mode = "orders" if options.orders else "seeds"
    wanted = [it for it in wanted if not options.orders or it.world != WORLDS[0]]
    for fault in wanted:
        program = planted(fault, objects)
        begun = time.monotonic()
        said = found(program, mode, options.seconds)
        missed += not said
        print(f"{time.monotonic() - begun:6.1f} s  {fault.name}: {said or 'NOT FOUND'}", flush=True)
        shutil.rmtree(program.parent)
    print(f"{len(wanted) - missed} of {len(wanted)} found")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
