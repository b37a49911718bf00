# SPDX-License-Identifier: BSD-3-Clause
"""deephyper: a dict that all ranks share in a window, and the storage of jobs upon it."""

from __future__ import annotations

from clock import REPEAT, check, took
from deephyper.evaluator.mpi import MPI

if not MPI.Is_initialized():
    MPI.Init_thread()  # deephyper tells mpi4py not to; it must be before its storage comes in

from deephyper.evaluator.storage import MPIWinMutableMapping, MPIWinStorage

ITEMS = 20
JOBS = 5


def items(size: int, count: int) -> None:
    """Set items of each rank, add to a counter of all ranks, and read others' items."""
    table = MPIWinMutableMapping({"n": 0, "deep": {"n": 0}}, comm, size=size)
    seen = []
    for item in range(count):
        table[f"{rank}:{item}"] = rank * item
        seen.append(table.incr("n"))
        table.incr("deep.n", 2)
        check(table[f"{rank}:{item}"] == rank * item, "one's own item")
    comm.Barrier()
    everyone = sorted(number for numbers in comm.allgather(seen) for number in numbers)
    check(everyone == list(range(1, comm.size * count + 1)), "a number drawn twice, or lost")
    check(table["n"] == comm.size * count, "the counter")
    check(table["deep"] == {"n": 2 * comm.size * count}, "the counter within")
    check(len(table) == comm.size * count + 2, "an item was lost")
    for other in range(comm.size):
        check(table[f"{other}:{count - 1}"] == other * (count - 1), "another rank's item")
    with table(read_only=True):
        check(sum(key[0] in "0123456789" for key in table) == comm.size * count, "the keys")
    comm.Barrier()
    if rank == comm.size - 1:
        del table["n"]
    comm.Barrier()
    check("n" not in table and "deep" in table, "a deleted item")


def jobs() -> None:
    """Record jobs as an evaluator does, from all ranks at once."""
    storage = MPIWinStorage(comm, size=1 << 20)
    search = comm.bcast(storage.create_new_search() if rank == 0 else None)
    for number in range(JOBS):
        job = storage.create_new_job(search)
        storage.store_job_in(job, kwargs={"x": number, "rank": rank})
        storage.store_job_out(job, rank + number / 8)
        storage.store_job_metadata(job, "seconds", number)
        storage.store_job_status(job, 2)
        check(storage.load_job_status(job) == 2, "the status of a job")
    comm.Barrier()
    names = storage.load_all_job_ids(search)
    check(sorted(int(name.split(".")[1]) for name in names) == [*range(JOBS * comm.size)], "jobs")
    expected = sorted(one + number / 8 for one in range(comm.size) for number in range(JOBS))
    check(sorted(storage.load_out_from_all_jobs(search)) == expected, "the jobs' results")
    check(len(storage.load_metadata_from_all_jobs(search, "seconds")) == len(names), "metadata")
    comm.Barrier()


comm = MPI.COMM_WORLD
rank = comm.Get_rank()
for _ in range(REPEAT):
    with took(comm, f"{4 * ITEMS} items of each rank, window of 64 KiB"):
        items(1 << 16, ITEMS)
    with took(comm, f"{JOBS} jobs of each rank, window of 1 MiB"):
        jobs()
with took(comm, "8 items of each rank, window of 100 MiB"):
    items(100 << 20, 2)
# As Python ends, the collector frees windows, and in another order on each rank: with MPI's
# own windows, which rmaext takes memory from on route fabric, that hangs now and then.
for number in sorted(MPIWinMutableMapping.CACHE):
    MPIWinMutableMapping.CACHE[number] = None
