package worker

import (
	"testing"

	"github.com/pgwake/pgwake/lease"
)

// A handler may return between the decision that it is too late and its being counted as stuck.
func TestAReturnedHandlerIsNotCountedAsStuck(t *testing.T) {
	t.Parallel()
	h, e := newHeld(), &execution{lease: &lease.Lease{}, over: true}
	h.add(e)
	e.returned = true
	h.returned(e)
	h.stuck(e)
	if n := h.stuckCount(); n != 0 {
		t.Errorf("%d are stuck", n)
	}
}
