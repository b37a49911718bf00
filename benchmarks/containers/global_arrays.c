/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Patches of a Global Array, as arrays.py takes them of an Array:
 *
 *     mpiexec -n 2 global_arrays SIDE PATCH PLACES SETTINGS FOLDER
 *
 * Rank 0 gets, puts and adds patches of PATCH x PATCH doubles of an array of
 * SIDE x SIDE that has as many rows on each rank; the others wait. The file
 * PLACES has where they begin, a row and a column each. FOLDER/result tells how
 * long each took, in nanoseconds, as rmaext.bench.run wants it; the settings
 * are for programs that have any. What is wrong ends the job.
 */
#include <ga.h>
#include <macdecls.h>
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GET, PUT, ADD, CALLS };
static const char *const names[CALLS] = {"get", "put", "add"};

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *memory(size_t bytes)
{
	void *it = calloc(1, bytes);

	if (!it)
		GA_Error("no memory", 1);
	return it;
}

/* A patch of what every rank knows the array to have. */
static double *row_of(double *whole, const int *low, int side, int i)
{
	return whole + (size_t)(low[0] + i) * (size_t)side + low[1];
}

/* Returns how long it took. */
static long long one(int call, int array, double *whole, int side, int patch,
		     int *low, double *values)
{
	int high[] = {low[0] + patch - 1, low[1] + patch - 1};
	const long long start = now();
	double factor = 1;
	long long took;

	GA_Init_fence();
	if (call == GET)
		NGA_Get(array, low, high, values, &patch);
	else if (call == PUT)
		NGA_Put(array, low, high, values, &patch);
	else
		NGA_Acc(array, low, high, values, &patch, &factor);
	if (call != GET)
		GA_Fence(); /* it is there then */
	took = now() - start;
	for (int i = 0; i < patch; i++) {
		double *there = row_of(whole, low, side, i),
		       *here = values + i * patch;

		for (int j = 0; j < patch; j++) {
			if (call == GET && here[j] != there[j])
				GA_Error("get: wrong data", 1);
			there[j] = call == ADD ? there[j] + here[j] : here[j];
		}
	}
	return took;
}

static void check(int array, const double *whole, int side, double *values)
{
	for (int i = 0; i < side; i++) {
		int low[] = {i, 0}, high[] = {i, side - 1};

		NGA_Get(array, low, high, values, &side);
		if (memcmp(values, whole + (size_t)i * (size_t)side,
			   (size_t)side * sizeof(*values)))
			GA_Error("put or add: wrong data", 1);
	}
}

/* Rank 0's part, while the others wait. */
static void calls(int array, int side, int patch, FILE *places, FILE *result)
{
	double *whole = memory((size_t)side * (size_t)side * sizeof(*whole));
	double *values = memory((size_t)patch * (size_t)side * sizeof(*values));
	int low[2];

	fprintf(result, "{\"facts\": {}, \"figures\": {");
	for (int call = 0; call < CALLS; call++) {
		const char *between = "";

		fprintf(result, "%s\"%s\": [", call ? ", " : "", names[call]);
		rewind(places);
		while (fread(low, sizeof(low), 1, places)) {
			for (int k = 0; call != GET && k < patch * patch; k++)
				values[k] = rand() % 9;
			fprintf(result, "%s%lld", between,
				one(call, array, whole, side, patch, low,
				    values));
			between = ", ";
		}
		fprintf(result, "]");
		check(array, whole, side, values);
	}
	fprintf(result, "}}\n");
	free(values);
	free(whole);
}

int main(int argc, char **argv)
{
	const int side = argc == 6 ? atoi(argv[1]) : 0,
		  patch = side ? atoi(argv[2]) : 0;
	int dims[] = {side, side}, chunk[] = {-1, side}, array;
	char part[4096], whole[4096];
	double zero = 0;
	FILE *places, *result;

	if (patch < 1 || patch >= side || MPI_Init(&argc, &argv))
		return 2;
	GA_Initialize();
	MA_init(C_DBL, 1 << 20, 1 << 20);
	array = NGA_Create(C_DBL, 2, dims, "patches", chunk);
	if (!array)
		GA_Error("no array", 1);
	GA_Fill(array, &zero);
	GA_Sync();
	if (!GA_Nodeid()) {
		snprintf(part, sizeof(part), "%s/result.part", argv[5]);
		result = fopen(part, "w");
		places = fopen(argv[3], "rb");
		if (!result || !places)
			GA_Error("no file of places, or for the result", 1);
		calls(array, side, patch, places, result);
		fclose(places);
		snprintf(whole, sizeof(whole), "%s/result", argv[5]);
		if (fclose(result) || rename(part, whole))
			GA_Error("the result was not written", 1);
	}
	GA_Sync();
	GA_Destroy(array);
	GA_Terminate();
	return MPI_Finalize();
}
