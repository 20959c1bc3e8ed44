// Package registry says what a worker can run: it maps task types to typed handlers and to the options of each type.
//
//	reg := registry.New()
//	err := registry.Register(reg, func(ctx context.Context, task *pgwake.Task[Welcome]) error {
//		return mail.Send(ctx, task.Payload.Address)
//	}, nil)
//
// The payload's type names the task type. A payload that does not decode into it freezes its task at once, with the
// field named, since no retry can help; fields that the type does not know are ignored here and kept in the row.
package registry
