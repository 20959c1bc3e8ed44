/* The wake gate of package notify, for the checker spin.
 *
 * Three inserters commit one row each. Two workers take turns as keeper: the keeper's lock R makes one of them
 * responsible, the gate's lock K, held exclusively, makes inserters ring. An inserter tries K shared inside its commit
 * and releases it only after its row is visible; refused, it rings. Rings reach every worker that listens; those that
 * are not keeper do nothing about them. A keeper that is full hands over: it releases both and tells the others.
 *
 * Checked: a visible row is claimed at last, without any sweep, as long as some worker is there (the claim at the end),
 * and no state is a dead end. With -DDEATH a keeper may vanish at any moment; the sweep then finds the row.
 *
 * Broken on purpose, each refuted by the checker:
 *   -DCLAIM_BEFORE_ARM   the last look before sleeping comes before arming
 *   -DFLAG               inserters read whether the gate is armed, but hold nothing up to visibility
 *   -DSLEEP_BLOCKED      a worker that could not arm because of commits in flight goes to sleep
 *   -DPHANTOM            a timed-out arm ends as an error that holds the lock, and the worker does not know
 */

#define W 2
#define I 3
#define NOBODY 99

byte keeper = NOBODY;   /* R */
byte armed = NOBODY;    /* K, exclusively */
byte waiting = 0;       /* requests for K that wait: new shared tries are refused meanwhile */
byte shared = 0;        /* K, shared, by commits in flight */
byte visible = 0;       /* rows that are committed and not claimed */
byte committed = 0;     /* inserters that are done */
bool bell[W];           /* rings, a cap-1 channel of each worker: for the keeper */
bool call[W];           /* word that nobody is responsible: for all */
bool dead[W];

inline ring() {
	atomic { bell[0] = true; bell[1] = true }
}

inline handOver() {
	atomic { call[0] = true; call[1] = true }
}

proctype Inserter() {
	bool rings;
	/* the deferred trigger, inside the commit */
#ifdef FLAG
	rings = (armed != NOBODY);
#else
	atomic {
		if
		:: armed != NOBODY || waiting > 0 -> rings = true
		:: else -> rings = false; shared++
		fi
	}
#endif
	/* the row becomes visible, or the transaction rolls back */
	atomic {
		if
		:: visible++
		:: skip
		fi
	}
#ifndef FLAG
	/* locks are released only then */
	if
	:: !rings -> shared--
	:: else
	fi;
#endif
	/* and notifications are delivered */
	if
	:: rings -> ring()
	:: else
	fi;
	committed++
}

/* claim takes every visible row there is; got tells whether there was any. */
inline claim() {
	atomic {
		got = (visible > 0);
		visible = 0
	}
}

inline release() {
	/* K first, then R, then word to the others */
	atomic {
		if
		:: armed == _pid_ -> armed = NOBODY
		:: else
		fi
	}
	if
	:: keeper == _pid_ -> keeper = NOBODY; handOver()
	:: else
	fi
}

proctype Worker(byte _pid_) {
	bool got;
	bool blocked;
look:
	claim();
	if
	:: got -> goto look
	:: else
	fi;
	/* nothing due: become keeper, or leave it to the one there is */
	atomic {
		if
		:: keeper == NOBODY -> keeper = _pid_
		:: else
		fi
	}
	if
	:: keeper != _pid_ -> goto sleep
	:: else
	fi;
arm:
	blocked = false;
	if
	:: armed == _pid_ -> skip
	:: else ->
		/* a bounded wait: it ends armed once no commit is in flight, or by time-out while one is */
		atomic { waiting++ }
		if
		:: atomic { shared == 0 && armed == NOBODY -> waiting--; armed = _pid_ }
		:: atomic { shared > 0 -> waiting--; blocked = true }
#ifdef PHANTOM
		:: atomic { shared == 0 && armed == NOBODY -> waiting--; armed = _pid_; keeper = NOBODY; goto sleep }
#endif
		fi
	fi;
#ifdef SLEEP_BLOCKED
	if
	:: blocked -> goto sleep
	:: else
	fi;
#endif
#ifndef CLAIM_BEFORE_ARM
	claim();
	if
	:: got -> goto busy
	:: else
	fi;
#endif
	if
	:: blocked -> goto arm   /* not a reason to sleep */
	:: else
	fi;
sleep:
	if
	:: atomic { bell[_pid_] && keeper == _pid_ -> bell[_pid_] = false; goto look }
	:: atomic { bell[_pid_] && keeper != _pid_ -> bell[_pid_] = false; goto sleep }   /* the keeper hears it, too */
	:: atomic { call[_pid_] -> call[_pid_] = false; goto look }
#ifdef DEATH
	:: atomic { !dead[1 - _pid_] ->   /* killed: its session's locks go with it */
			dead[_pid_] = true;
			if
			:: armed == _pid_ -> armed = NOBODY
			:: else
			fi;
			if
			:: keeper == _pid_ -> keeper = NOBODY
			:: else
			fi;
			goto gone
		}
	:: dead[1 - _pid_] && keeper == NOBODY -> goto look   /* the sweep, or the deputy's lock, granted */
#endif
	fi;
busy:
	/* there was work: stay armed, disarm and look by itself, or be full and hand over */
	if
	:: skip
	:: atomic { armed == _pid_ -> armed = NOBODY }   /* moderation: still keeper, looks on */
	:: release()
	fi;
	goto look;
#ifdef DEATH
gone:
	skip
#endif
}

init {
	atomic {
		run Worker(0); run Worker(1);
		run Inserter(); run Inserter(); run Inserter()
	}
}

/* Whenever all commits are through, every row is claimed at last and stays so. */
ltl claimed { [] (committed == I -> <> (visible == 0)) }
