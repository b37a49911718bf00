#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# A job for Slurm: sbatch job.sh program.py [arguments]
# VENV names the virtual environment with rmaext; here also: modules, a partition, an account.
#SBATCH --job-name=rmaext
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=00:10:00
set -eu
PATH=$(realpath "${VENV:-.venv}")/bin:$PATH
export OPENBLAS_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# How srun tells the ranks of each other depends on the MPI and on the site. What is wrong
# shows in that every rank is rank 0 of 1, or aborts; so each way is tried with a small job.
# mpiexec of the MPI wheels starts ranks on all nodes of the allocation by itself.
together='from mpi4py import MPI; import os, sys
sys.exit(MPI.COMM_WORLD.size != int(os.environ["SLURM_NTASKS"]))'
for start in srun "srun --mpi=pmix" "srun --mpi=pmi2" "srun --mpi=cray_shasta" mpiexec; do
	if timeout 60 $start python -c "$together" >/dev/null 2>&1; then
		echo "started by $start"
		exec $start python "$@"
	fi
done
echo "No way to start this MPI was found. These there are:" >&2
srun --mpi=list >&2
exit 1
