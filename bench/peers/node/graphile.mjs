// A worker process of Graphile Worker; with the argument "prepare", what makes its tables.
import { Logger, run, runMigrations } from 'graphile-worker'
import { handle, job, serve } from './fleet.mjs'

const settings = {
  best: {
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 1000 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
  default: {},
}

const logger = new Logger(() => (level, message) => {
  if (level === 'error' || level === 'warning') console.error(message)
})
const worker = { connectionString: job.URL, ...settings[job.Setting] }
if (job.Slots) worker.concurrentJobs = job.Slots

if (process.argv[2] === 'prepare') {
  await runMigrations({ preset: { worker }, logger })
} else {
  await serve(async () => {
    const runner = await run({
      preset: { worker },
      logger,
      noHandleSignals: true,
      taskList: { [job.Type]: (payload, { job: { attempts } }) => handle(payload, attempts) },
    })
    return () => runner.stop()
  })
}
