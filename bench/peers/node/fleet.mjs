// The worker processes' side of the protocol that package fleet has: "ready" once it works, a line of JSON in answer to
// each line read, the end at SIGTERM or when the parent is gone.
import { createInterface } from 'node:readline'
import { setTimeout as rest } from 'node:timers/promises'

export const job = JSON.parse(process.env.PGWAKE_BENCH_JOB)

const work = job.Work / 1e6 // ms
const runs = new Uint32Array(job.Tally + 1) // of each task by its number; the first one's are those of no number
let starts = []

// The clock in whole microseconds, as exact as numbers are.
const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000)

// handle is the handler of every task: it notes the run, and takes the time that the job says.
export function handle({ sent }, attempt) {
  if (job.Tally) count(sent >= 1 && sent <= job.Tally ? sent : 0)
  else starts.push(`{"Sent":${sent},"At":${now()}000,"Attempt":${attempt}}`)
  return work ? rest(work) : undefined
}

// tally is kept so that a look at it costs nothing.
const tally = { Ran: 0, Distinct: 0, Most: 0 }

function count(number) {
  const n = ++runs[number]
  tally.Ran++
  if (number === 0) return
  if (n === 1) tally.Distinct++
  if (n > tally.Most) tally.Most = n
}

function report() {
  if (!job.Tally) {
    const answer = `[${starts}]`
    starts = []
    return answer
  }
  return JSON.stringify(tally)
}

// serve starts a worker by start, which returns how to stop it, and is its process until the end.
export async function serve(start) {
  const stop = await start()
  const end = async () => {
    await stop()
    process.exit(0)
  }
  process.once('SIGTERM', end)
  createInterface({ input: process.stdin }).on('line', () => console.log(report())).once('close', end)
  console.log('ready')
}
