/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Progress of the network: who reads the completion queue of an endpoint
 * (progress.c), and what its reader does (completion_queue.c).
 */
#ifndef RMAEXT_PROGRESS_H
#define RMAEXT_PROGRESS_H

#include "base/await.h"

struct rmaext_fabric;
struct rmaext_peer;
struct rmx_op;
struct rmaext_window;

#define RMX_NAP_MAX                                              \
	((int64_t)1000 * 1000) /* ns between looks, without a fd \
				*/

/* The queue may be taken from the progress thread while that sleeps. */
enum rmx_sleep { RMX_AWAKE, RMX_ASLEEP, RMX_TAKEN_FROM };

/* Who reads the completion queue, and who sleeps; see progress.c. */
struct rmx_progress {
	atomic_bool reader;   /* held by the one reader of the CQ */
	atomic_int waiters;   /* application threads that wait */
	atomic_uint visits;   /* number of waits that have begun */
	atomic_int followers; /* waiters that do not read: they sleep on turn */
	atomic_uint turn;     /* futex: something has changed for followers */
	atomic_bool thread_reads;
	atomic_int sleep; /* enum rmx_sleep, of the progress thread */
	atomic_bool stop;
	atomic_uint unpark; /* futex: the parked progress thread sleeps on it */
	atomic_bool long_park; /* it has parked for RMX_PARK_LONG */
	int cq_fd;	       /* -1: the provider has none */
	int wake_fd;	       /* calls the progress thread out of poll */
	pthread_t thread;
	bool running;
	int64_t spin;	/* ns before a waiting origin sleeps */
	bool signalled; /* the reader's: cq_fd may be readable for no reason */
};

/*
 * What the rooms above do for an endpoint; am/ fills the table. The reader of
 * the CQ calls the first three functions, and none of them may wait.
 */
struct rmx_hooks {
	/*
	 * Takes a completion by the context of its call. `failure` is NULL
	 * unless the call has failed, and stays the caller's.
	 */
	void (*complete)(struct rmaext_fabric *fabric, void *context,
			 size_t len, const struct rmaext_error *failure);
	/* Comes before each read of the CQ, and before the reader sleeps. */
	void (*before_read)(struct rmaext_fabric *fabric);
	/* Tries again what the provider did not take before. */
	void (*after_read)(struct rmaext_fabric *fabric);
	/* Is there something to try again that no event announces? */
	bool (*restless)(const struct rmaext_fabric *fabric);
	/*
	 * Puts an operation that goes as messages in line, and tries again
	 * what waits there. Whoever waits for the operation calls it.
	 */
	enum rmx_step (*send)(struct rmx_op **op_p);
	/*
	 * Of a write that notifies: `notify` puts its message in line, before
	 * the write is posted. `written` counts down what holds the write open,
	 * and once that is its message alone, it lets go of that, or drops it
	 * if the write has failed; false: there is no message any more, and
	 * nothing was done. The lock of the backlog may be held.
	 */
	void (*notify)(struct rmx_op *op);
	bool (*written)(struct rmx_op *op);
	/* Adds the process at an address, as rmaext_peer_add() does. */
	int (*add_peer)(struct rmaext_fabric *fabric, const void *address,
			size_t len, int pidfd, bool client,
			struct rmaext_peer **peer_p);
	/*
	 * A flush of these ranks waits: what is to go to them goes as soon as
	 * credits allow. The caller holds no lock.
	 */
	void (*push)(struct rmaext_window *window, int64_t first, int64_t end);
	/*
	 * Ends such an operation, or the message of a write that notifies, for
	 * which nobody waits any more.
	 */
	void (*give_up)(struct rmx_op *op);
	/*
	 * Drops what is to go to that rank (-1: to any), as nobody waits for
	 * it any more. The caller holds no lock of the fabric or of messages.
	 */
	void (*forget)(struct rmaext_window *window, int64_t rank);
};

/* -- completion_queue.c: the reader of the CQ calls these */

/*
 * Reads and dispatches the completions that there are. Returns their number,
 * that of failed ones included.
 */
int rmx_cq_drain(struct rmaext_fabric *fabric);

/* Wakes the threads that wait for memory which the network may have changed. */
void rmx_cq_wake_waiters(const struct rmaext_fabric *fabric);

/*
 * Returns whether the reader may sleep now: the network wakes it by what comes
 * from now on. What other ranks have put may be in memory since this call only,
 * so the caller must look at what it waits for once more.
 */
bool rmx_cq_arm(struct rmaext_fabric *fabric);

/*
 * Comes after rmx_cq_arm(). Returns for how long the reader may sleep, `ns` at
 * most. *nap is the reader's, 0 at first and after activity: where the CQ has
 * no descriptor, the naps grow up to RMX_NAP_MAX.
 */
int64_t rmx_cq_nap(struct rmaext_fabric *fabric, int64_t ns, int64_t *nap);

/*
 * Sleeps for `ns` at most, until the network has something or `other_fd` (-1:
 * none) is readable. Returns the bits of what has happened. It touches nothing
 * of the queue, which another thread may read meanwhile.
 */
enum { RMX_BY_NETWORK = 1, RMX_BY_OTHER = 2, RMX_INTERRUPTED = 4 };
int rmx_cq_sleep(const struct rmaext_fabric *fabric, int other_fd, int64_t ns);

/*
 * Says whether the network has something for this rank. That includes requests
 * of peers that the provider serves, which give no completion.
 */
bool rmx_cq_is_ready(struct rmaext_fabric *fabric);

/* -- progress.c */

/*
 * Starts to read the CQ, by a progress thread if `thread` is set. Called once
 * when the fabric opens. Returns 0 or -errno; rmx_progress_stop() is due in
 * either case.
 */
int rmx_progress_start(struct rmaext_fabric *fabric, int thread, int64_t spin);

/*
 * Ends the progress thread. No other thread is in a call on the fabric. Returns
 * false if the thread has not ended after some seconds: it is in a call of the
 * provider that does not return, and may hold any lock.
 */
bool rmx_progress_stop(struct rmaext_fabric *fabric);

/*
 * Reads the CQ for up to 100 ms, until unsettled() says no. No other thread
 * reads it any more.
 */
void rmx_progress_settle(struct rmaext_fabric *fabric,
			 bool (*unsettled)(const struct rmaext_fabric *));

/*
 * Lets the progress thread take the queue over at once, as the caller, which
 * has read it until now, sleeps elsewhere.
 */
void rmx_progress_hand_over(struct rmaext_fabric *fabric);

/*
 * Waits until step(arg) says RMX_DONE. Application threads call it, inside a
 * call on the fabric and without a lock; it reads the queue, or follows the
 * thread that does. `peer` is the one waited for, or NULL: the wait ends when
 * its process does. The thread spins `spins` times as long as usual before it
 * sleeps; 0 means not at all. Returns 0, or RMAEXT_PENDING at the time `until`,
 * after a signal, or when the peer is gone: rmx_deadline() says what it means.
 */
int rmx_wait(struct rmaext_fabric *fabric, struct rmaext_peer *peer,
	     enum rmx_step (*step)(void *), void *arg, int64_t until,
	     unsigned int spins);

/*
 * The same for a thread that waits for no operation of its own, but for other
 * ranks, and serves them meanwhile. `pace` is the caller's, begun by
 * rmx_pace_begin().
 */
int rmx_wait_serving(struct rmaext_fabric *fabric,
		     enum rmx_step (*step)(void *), void *arg, int64_t until,
		     struct rmx_pace *pace);

/* Reads the queue once, unless another thread is its reader. */
void rmx_look(struct rmaext_fabric *fabric);

/*
 * Wakes the progress thread, if it is the reader, as there is something for it
 * to try again. Any thread may call it, with any lock held.
 */
void rmx_progress_call(struct rmaext_fabric *fabric);

/*
 * Says what RMAEXT_PENDING of a wait for `peer` (NULL: for none) means by now.
 * `moved` says that there was progress since the last call, which moves
 * *deadline to `timeout` from now. Returns RMAEXT_PENDING: wait on; or
 * -FI_ENOTCONN or -FI_ETIMEDOUT with a record of `rank` and `call`.
 */
int rmx_deadline(struct rmaext_peer *peer, int64_t rank, const char *call,
		 int64_t timeout, int64_t *deadline, bool moved);

#endif
