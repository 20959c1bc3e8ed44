/* The wake gate, for the checker spin: migrations/0004_gate.sql, notify/gate.go, worker/watch.go and worker/dispatcher.go.
 * README.md, beside this file, compares it with them and says what it leaves out.
 *
 * A worker is rung while it holds the gate's lock K exclusively, and responsible while it holds the keeper's lock R.
 * Transitions:
 *
 *   inserters    commit one row each, or roll back. The trigger tries K shared and keeps it until the row is visible;
 *                refused, because a worker holds K or waits for it, it rings, after the row is visible
 *   arming       R first: refused, there is another keeper. Then K: refused, a bounded wait, which may end by time-out at any
 *                moment: commits in flight, a dying session's K, or K just free. Then claim
 *   moderation   a keeper that found something may disarm and look by itself
 *   full         a claim takes all rows, or one, which fills the slots; who is full lets go of K, then of R, then calls the
 *                others, who try to take over
 *   stopping     the same, for good. All workers but one may stop, or be full for ever, at any moment
 *   reconnect    a listener loses its connection, at any moment, and rings and calls to it are lost; it notices later, lets
 *                go and calls, does not arm until LISTEN is back, and then looks and tries to take over
 *   deaths       with -DDEATH: a worker is killed between any two steps, and its locks go one by one; or its session ends and
 *                it does not know. Each worker has one more sweep after that
 *
 * Checked: once all commits are through, every visible row is claimed, by rings and calls alone, as long as one worker is
 * neither gone nor full for ever. Sweeps, the turns of those that see now and then whether there is a keeper, second looks
 * behind the keeper's back and the polling of deaf workers only add looks: there are none here, but for the sweep after a
 * death.
 *
 * Broken on purpose:
 *
 *   -DCLAIM_BEFORE_ARM   the last look before sleeping comes before arming
 *   -DFLAG               inserters read whether the gate is armed, but hold nothing up to visibility
 *   -DSLEEP_BLOCKED      a worker that could not arm because of commits in flight goes to sleep
 *   -DPHANTOM            a timed-out arm ends as an error that holds the lock, and the worker does not know
 *   -DFULL_SILENT        who is full lets go and calls nobody
 *   -DLOST_SILENT        who has lost its listener lets go and calls nobody
 *   -DLOST_ARMED         who has lost its listener keeps its locks, and does not look when it is back
 *   -DBACK_BLIND         who has lost its listener lets go, and does not look when it is back
 *   -DDEATH -DNO_SWEEP   a keeper dies, and nobody sweeps
 */

#ifndef W
#define W 2   /* workers, 2 or 3 */
#endif
#ifndef I
#define I 3   /* inserters */
#endif
#ifndef LOSSES
#define LOSSES 1   /* listeners that may lose their connection; workers are alike, so that it does not matter whose */
#endif
#define NOBODY 99

byte keeper = NOBODY;   /* R */
byte armed = NOBODY;    /* K, exclusively */
byte waiter = NOBODY;   /* a request for K that waits: new shared tries are refused meanwhile */
byte shared;            /* K, shared, by commits in flight */
byte visible;           /* rows that are committed and not claimed */
byte begun;             /* inserters: those that have begun to commit; of these, */
byte through, refused;  /* those that got K and those that did not, before the row is visible */
byte throughVisible, refusedVisible;   /* and after; */
byte committed;         /* and those that are done */
bool bell[W];           /* a ring has come in; like the two below a channel of capacity 1 */
bool call[W];           /* nobody is responsible any more */
bool news[W];           /* the listener was lost, or is back */
bool hears[W];          /* LISTEN is in effect */
bool up[W];             /* and the worker thinks so */
byte away;              /* workers that are gone, or full for ever */
#ifdef DEATH
bool absent[W];         /* which */
bool dead[W];           /* killed */
bool sweep[W];          /* its next sweep is still to come */
#define LEAVE absent[me] = true; away++
#else
#define LEAVE away++
#endif

#if W == 2
#define TO_ALL(what) what[0] = what[0] || hears[0]; what[1] = what[1] || hears[1]
#else
#define TO_ALL(what) what[0] = what[0] || hears[0]; what[1] = what[1] || hears[1]; what[2] = what[2] || hears[2]
#endif

#ifdef FLAG
#define LOCK skip
#define UNLOCK skip
#else
#define LOCK shared++
#define UNLOCK shared--
#endif

/* All inserters in one: they are alike, so it is enough to count how many are how far. */
proctype Inserters() {
	do
	/* The deferred trigger, inside the commit. */
	:: atomic { begun < I ->
			begun++;
			if
			:: armed != NOBODY || waiter != NOBODY -> refused++
			:: else -> LOCK; through++
			fi
		}
	/* The row becomes visible. */
	:: atomic { through > 0 -> through--; visible++; throughVisible++ }
	:: atomic { refused > 0 -> refused--; visible++; refusedVisible++ }
	/* Only then are locks released, and notifications delivered to those who listen. */
	:: atomic { throughVisible > 0 -> throughVisible--; UNLOCK; committed++ }
	:: atomic { refusedVisible > 0 -> refusedVisible--; TO_ALL(bell); committed++ }
	/* Or the transaction rolls back. */
	:: atomic { through > 0 -> through--; UNLOCK; committed++ }
	:: atomic { refused > 0 -> refused--; committed++ }
	:: committed == I -> break
	od
}

/* The listener of a worker loses its connection once, at any moment, or never. */
proctype Listener(byte me) {
	if
	:: hears[me] = false;
#ifndef LOST_ARMED
		up[me] = false;
		news[me] = true;
#endif
		hears[me] = true;
		up[me] = true;
#if !defined(BACK_BLIND) && !defined(LOST_ARMED)
		news[me] = true
#endif
	:: skip
	fi
}

/* letGo releases the gate, then the keeper's lock, and then calls the others. */
inline letGo(calls) {
	atomic {
		looking = false;
		try = true;   /* to take over again, as soon as there is room */
		kept = (keeper == me);
		if
		:: armed == me -> armed = NOBODY
		:: else
		fi
	}
	atomic {
		if
		:: keeper == me -> keeper = NOBODY
		:: else
		fi;
		thinks = false
	}
	if
	:: kept && calls -> atomic { TO_ALL(call); kept = false }
	:: !kept || !calls -> kept = false
	fi
}

proctype Worker(byte me) {
	bool got;       /* the last claim found something */
	bool thinks;    /* it is keeper */
	bool try;       /* to become keeper */
	bool looking;   /* keeper, disarmed because rings would come too fast */
	bool kept;
#ifdef DEATH
	{
#endif
	try = true;   /* LISTEN is in effect: worker.connected */
look:
	/* claim: all there is, or as many as there are slots */
	atomic {
		if
		:: visible == 0
		:: visible > 0 -> visible = 0; got = true
		:: visible > 0 -> visible--; goto filled
		fi
	}
	/* moderate */
	if
	:: atomic { got && armed == me -> armed = NOBODY; looking = true }
	:: true
	fi;
sleepable:
	atomic {
		if
		:: !up[me] -> got = false; goto deaf
		:: up[me] && looking && got -> got = false; goto look
		:: up[me] && (!looking || !got) -> looking = false; got = false
		fi
	}
#ifdef CLAIM_BEFORE_ARM
	visible = 0;
#endif
	if
	:: armed == me || keeper != me && !try && !thinks -> goto sleep
	:: else
	fi;
	/* arm: R */
	atomic {
		try = false;
		if
		:: keeper == me
		:: keeper == NOBODY -> keeper = me; thinks = true
		:: keeper == NOBODY -> keeper = me; thinks = true; looking = true; goto look   /* keep: look, then arm */
		:: else -> thinks = false; goto sleep   /* another keeper */
		fi
	}
	/* K, without waiting */
	if
	:: atomic { keeper == me && shared == 0 && armed == NOBODY -> armed = me }
	:: atomic { keeper == me && (shared > 0 || armed != NOBODY) -> waiter = me }
#ifdef DEATH
	:: keeper != me -> goto lost
#endif
	fi;
	if
	:: armed == me
	:: armed != me ->
		/* K, for some milliseconds */
		if
		:: atomic { waiter == me && shared == 0 && armed == NOBODY -> waiter = NOBODY; armed = me }
		:: atomic { waiter == me -> waiter = NOBODY;
#ifdef SLEEP_BLOCKED
				goto sleep
#else
				goto look   /* not a reason to sleep */
#endif
			}
#ifdef PHANTOM
		:: atomic { waiter == me && shared == 0 && armed == NOBODY -> waiter = NOBODY; armed = me; keeper = NOBODY; thinks = false; goto sleep }
#endif
#ifdef DEATH
		:: waiter != me -> goto lost
#endif
		fi
	fi;
#ifndef CLAIM_BEFORE_ARM
	goto look;   /* arm, then claim */
#endif
sleep:
	if
	:: atomic { bell[me] -> bell[me] = false;
			if
			:: thinks -> goto look
			:: else -> goto sleep   /* the keeper hears it, too */
			fi
		}
	:: atomic { call[me] -> call[me] = false;
			if
			:: thinks -> goto sleep
			:: else -> try = true; goto sleepable
			fi
		}
	:: atomic { news[me] -> news[me] = false; try = true; goto look }
	:: atomic { away < W - 1 -> LEAVE }; letGo(true)   /* stops */
#ifdef DEATH
	:: atomic { sweep[me] -> sweep[me] = false; goto lost }
#endif
	fi;
	goto gone;
deaf:
#ifdef LOST_SILENT
	letGo(false);
#else
	letGo(true);
#endif
	goto sleep;
filled:
	if
	:: goto look   /* a slot was set free in time */
	:: true
	fi;
#ifdef FULL_SILENT
	letGo(false);
#else
	letGo(true);
#endif
	if
	:: atomic { away < W - 1 -> LEAVE }
	:: goto look   /* a slot was set free */
	fi;
#ifdef DEATH
	goto gone;
lost:
	/* A statement failed if the session has ended: another session, which holds nothing. */
	atomic { try = true; thinks = (keeper == me); goto look }
#endif
gone:
	skip
#ifdef DEATH
	} unless { dead[me] }
#endif
}

#ifdef DEATH
#ifdef NO_SWEEP
#define SWEEPS skip
#else
#define SWEEPS sweep[0] = true; sweep[1] = true
#endif

inline lose(lock) {
	if
	:: lock == me -> lock = NOBODY
	:: else
	fi
}

/* Fate kills a worker that is not gone, or ends its session behind its back, or leaves it alone. */
proctype Fate(byte me) {
	if
	:: atomic { away < W - 1 && !absent[me] -> LEAVE; dead[me] = true };
		/* The server releases what the session holds, in no promised order. */
		lose(waiter);
		if
		:: armed == me -> armed = NOBODY
		:: keeper == me -> keeper = NOBODY
		:: armed != me && keeper != me
		fi;
		atomic { lose(armed); lose(keeper); SWEEPS }
	:: atomic { lose(waiter); lose(armed); lose(keeper); SWEEPS }
	:: skip
	fi
}
#endif

init {
	atomic {
		byte n;
		for (n : 0 .. W - 1) { hears[n] = true; up[n] = true; run Worker(n) }
		for (n : 0 .. LOSSES - 1) { run Listener(n) }
		run Inserters();
#ifdef DEATH
		run Fate(0)
#endif
	}
}

/* Whenever all commits are through, every row is claimed at last and stays so. */
ltl claimed { [] (committed == I -> <> (visible == 0)) }
