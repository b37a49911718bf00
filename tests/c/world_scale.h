/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What ranks of a calm world have sent and taken between two moments, as a line
 * of JSON; more than a formula allows is a failure.
 */
#ifndef RMAEXT_WORLD_SCALE_H
#define RMAEXT_WORLD_SCALE_H

#include "world_run.h"

/* Bytes of this process that are in memory, apart from files. */
static double memory(void)
{
	long pages, resident, shared;
	FILE *file = fopen("/proc/self/statm", "r");

	CHECK(file);
	EQUAL(fscanf(file, "%ld %ld %ld", &pages, &resident, &shared), 3);
	fclose(file);
	return (double)(resident - shared) * (double)sysconf(_SC_PAGESIZE);
}

static struct {
	double messages, bytes, memory;
	clock_t cpu;
} begun;

static double sent_messages(void)
{
	return (double)(world.sent[MESSAGE].count + world.sent[WRITE].count);
}

static double sent_bytes(void)
{
	return (double)(world.sent[MESSAGE].bytes + world.sent[WRITE].bytes);
}

static void measure(void)
{
	begun.messages = sent_messages();
	begun.bytes = sent_bytes();
	begun.memory = memory();
	begun.cpu = clock();
}

/*
 * Says what each of so many has sent and taken since, which is to be that many
 * messages and bytes at most, and begins anew.
 */
static void measured(const char *what, int each, double messages, double bytes)
{
	const double sent = (sent_messages() - begun.messages) / each;
	const double long_ = (sent_bytes() - begun.bytes) / each;
	const double us = (double)(clock() - begun.cpu) / CLOCKS_PER_SEC * 1e6;

	printf("{\"ranks\": %d, \"what\": \"%s\", \"messages\": %.2f, "
	       "\"bytes\": %.0f, \"memory\": %.0f, \"cpu_us\": %.2f}\n",
	       world.ranks, what, sent, long_, (memory() - begun.memory) / each,
	       us / each);
	fflush(stdout);
	is(sent <= messages, "more messages than the formula says");
	is(long_ <= bytes, "more bytes than the formula says");
	measure();
}

#endif
