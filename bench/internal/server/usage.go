package server

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Usage is what has been spent up to an instant. Only differences mean anything.
type Usage struct {
	At      time.Time // of no difference
	Seconds float64   // of a difference
	// Machine is the processor time in seconds of all programs there are; not a number without /proc.
	Machine float64
	// ServerCPU is in seconds, of all the server's processes; not a number on a server that was given.
	ServerCPU float64
	// ClientCPU is in seconds, of this process and those named; not a number without /proc.
	ClientCPU float64
	WAL       float64 // bytes, of the whole server
	// Of the processes' sessions in one database.
	Statements  float64
	Claims      float64
	EmptyClaims float64 // claims that found nothing; too few where claims took more than one row
}

// usageSQL sums the statements of role $1 in this database. Claims are the updates that pass over locked rows.
const usageSQL = `
select
  pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
  coalesce(sum(s.calls), 0)::float8,
  coalesce(sum(s.calls) filter (where c.claim), 0)::float8,
  coalesce(sum(greatest(s.calls - s.rows, 0)) filter (where c.claim), 0)::float8
from pg_stat_statements as s
cross join lateral (select ltrim(s.query, E' \n') like 'update %skip locked%' as claim) as c
where s.userid = $1::regrole and s.dbid = (select oid from pg_database where datname = current_database())`

// Usage reads what has been spent by the server, by this process and by those with the ids given, whose sessions are in
// the database.
func (d *Database) Usage(ctx context.Context, pids ...int) (Usage, error) {
	u := Usage{ServerCPU: math.NaN()}
	if err := d.Pool.QueryRow(ctx, usageSQL, d.server.role).Scan(&u.WAL, &u.Statements, &u.Claims, &u.EmptyClaims); err != nil {
		return u, fmt.Errorf("read what was spent: %w", err)
	}
	u.At = time.Now()
	u.ClientCPU = CPU(append(pids, os.Getpid())...)
	u.Machine = machineCPU()
	if own := d.server.own; own != nil {
		u.ServerCPU = treeCPU(own.PID())
	}
	return u, nil
}

// Others is the share of the machine's cores that programs took which are neither the server nor those measured.
func (u Usage) Others() float64 {
	return max(u.Machine-u.ServerCPU-u.ClientCPU, 0) / (u.Seconds * float64(runtime.NumCPU()))
}

// topSQL lists the statements of role $1 in this database, the most frequent first, and how often each was sent.
const topSQL = `
select regexp_replace(left(ltrim(s.query, E' \n'), 90), '\s+', ' ', 'g'), s.calls::float8
from pg_stat_statements as s
where s.userid = $1::regrole and s.dbid = (select oid from pg_database where datname = current_database())
order by s.calls desc
limit $2`

// Statement is one that the fleet sends.
type Statement struct {
	Text  string // its beginning
	Calls float64
}

// Top lists the statements that the fleet has sent most.
func (d *Database) Top(ctx context.Context, n int) ([]Statement, error) {
	rows, _ := d.Pool.Query(ctx, topSQL, d.server.role, n)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Statement])
}

// Since is what has been spent since an earlier instant.
func (u Usage) Since(before Usage) Usage {
	return Usage{
		Seconds: u.At.Sub(before.At).Seconds(), Machine: u.Machine - before.Machine,
		ServerCPU: u.ServerCPU - before.ServerCPU, ClientCPU: u.ClientCPU - before.ClientCPU, WAL: u.WAL - before.WAL,
		Statements: u.Statements - before.Statements, Claims: u.Claims - before.Claims, EmptyClaims: u.EmptyClaims - before.EmptyClaims,
	}
}

// Plus adds what was spent at two times.
func (u Usage) Plus(v Usage) Usage {
	return Usage{
		Seconds: u.Seconds + v.Seconds, Machine: u.Machine + v.Machine,
		ServerCPU: u.ServerCPU + v.ServerCPU, ClientCPU: u.ClientCPU + v.ClientCPU, WAL: u.WAL + v.WAL,
		Statements: u.Statements + v.Statements, Claims: u.Claims + v.Claims, EmptyClaims: u.EmptyClaims + v.EmptyClaims,
	}
}

// ticks is USER_HZ, which is 100 on every Linux that Go runs on.
const ticks = 100

// CPU is the processor time of processes in seconds; not a number if one cannot be read.
func CPU(pids ...int) float64 {
	sum := 0.0
	for _, pid := range pids {
		s, err := readStat(pid)
		if err != nil {
			return math.NaN()
		}
		sum += s.own
	}
	return sum
}

// treeCPU is the processor time of a process and all its children, those that are gone included.
func treeCPU(parent int) float64 {
	s, err := readStat(parent)
	if err != nil {
		return math.NaN()
	}
	sum := s.own + s.reaped
	paths, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil && s.parent == parent {
			sum += s.own
		}
	}
	return sum
}

// machineCPU is the processor time in seconds that all cores have spent on something, that taken by the host included.
func machineCPU() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return math.NaN()
	}
	busy, err := parseMachine(string(text))
	if err != nil {
		return math.NaN()
	}
	return busy
}

// parseMachine reads the first line of /proc/stat: cpu user nice system idle iowait irq softirq steal …
func parseMachine(text string) (busy float64, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("machine status: %q", line)
	}
	for i, field := range fields[1:9] {
		t, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 { // idle, and idle while waiting for a disk
			busy += t / ticks
		}
	}
	return busy, nil
}

// stat is what /proc/PID/stat says: see proc(5).
type stat struct {
	parent      int
	own, reaped float64 // seconds: of the process, and of its children that have been waited for
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(text))
}

func parseStat(text string) (s stat, err error) {
	// The name, in brackets, may hold anything.
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	if len(fields) < 15 {
		return s, fmt.Errorf("process status: %d fields", len(fields))
	}
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return s, err
	}
	var t [4]float64
	for i := range t {
		if t[i], err = strconv.ParseFloat(fields[11+i], 64); err != nil {
			return s, err
		}
	}
	s.own, s.reaped = (t[0]+t[1])/ticks, (t[2]+t[3])/ticks
	return s, nil
}
