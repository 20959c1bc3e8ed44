// Package migrations holds pgwake's schema and applies it.
//
// Every migration is one transaction: a process killed half-way leaves the version before it. Any number of processes
// may call [Up] at once; one of them works, the others wait for it. A schema may have any name, quoted names included,
// and several pgwake schemas live side by side in one database without knowing of each other.
//
// A migration is additive wherever it can be, so that workers of the version before it go on running: deploy the
// schema first, then the programs. One that breaks older programs raises schema_compatible_from(), and [Check] tells
// those programs so in plain words.
package migrations
