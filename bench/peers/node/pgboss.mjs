// A worker process of pg-boss; with the argument "prepare", what makes its tables; with "fill", what enqueues as many
// tasks as the next argument says.
import { PgBoss } from 'pg-boss'
import { handle, job, serve } from './fleet.mjs'

const workers = 4 // of one process, each with a batch
const settings = {
  best: {
    instance: { useListenNotify: true },
    queue: { notify: true },
    work: {
      batchSize: job.Slots ? Math.ceil(job.Slots / workers) : 1000,
      localConcurrency: workers,
      burstWhenBatchFull: true,
      pollingIntervalSeconds: 0.5,
      notifyPollingIntervalSeconds: 0.5,
    },
  },
  default: { instance: {}, queue: {}, work: job.Slots ? { localConcurrency: job.Slots } : {} },
}
const { instance, queue, work } = settings[job.Setting]

const boss = new PgBoss({ connectionString: job.URL, ...instance })
boss.on('error', error => console.error(error.message))
await boss.start()

switch (process.argv[2]) {
  case 'prepare':
    await boss.createQueue(job.Type, queue)
    await boss.stop()
    break
  case 'fill': {
    const n = Number(process.argv[3])
    for (let first = 1; first <= n; first += 1000) {
      const length = Math.min(1000, n - first + 1)
      await boss.insert(job.Type, Array.from({ length }, (_, i) => ({ data: { sent: first + i } })))
    }
    await boss.stop()
    break
  }
  default:
    await serve(async () => {
      // Which attempt it is, it tells only those who ask for all that it knows of a job.
      await boss.work(job.Type, work, jobs => Promise.all(jobs.map(({ data }) => handle(data, 1))))
      return () => boss.stop()
    })
}
