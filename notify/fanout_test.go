package notify

import (
	"slices"
	"sync"
	"testing"
)

func TestFanout(t *testing.T) {
	t.Parallel()
	subscriptions := map[string][]string{
		"all":  nil,
		"mail": {"mail"},
		"both": {"mail", "image"},
		"twin": {"mail", "mail"},
	}
	for _, tc := range []struct {
		name  string
		rings []string // "*" is RingAll
		want  []string // who is woken, once each
	}{
		{"nothing", nil, nil},
		{"topic", []string{"image"}, []string{"all", "both"}},
		{"topic of several", []string{"mail"}, []string{"all", "both", "mail", "twin"}},
		{"unknown topic", []string{"video"}, []string{"all"}},
		{"case counts", []string{"Mail"}, []string{"all"}},
		{"empty topic", []string{""}, []string{"all", "both", "mail", "twin"}},
		{"all", []string{"*"}, []string{"all", "both", "mail", "twin"}},
		{"many are one", []string{"image", "image", "mail", "*", "image"}, []string{"all", "both", "mail", "twin"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var f Fanout
			subs := make(map[string]*Subscription)
			for name, topics := range subscriptions {
				subs[name] = f.Subscribe(topics...)
			}
			for _, topic := range tc.rings {
				if topic == "*" {
					f.RingAll()
				} else {
					f.Ring(topic)
				}
			}
			var got []string
			for name, s := range subs {
				if woken(s) {
					got = append(got, name)
				}
				if woken(s) {
					t.Errorf("%s woken twice", name)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("woken %v, want %v", got, tc.want)
			}

			for _, s := range subs {
				s.Close()
				s.Close()
			}
			f.RingAll()
			f.Ring("mail")
			for name, s := range subs {
				if woken(s) {
					t.Errorf("%s woken after Close", name)
				}
			}
			if len(f.all)+len(f.topics) != 0 {
				t.Errorf("left behind: %v, %v", f.all, f.topics)
			}
		})
	}
}

func TestFanoutRingAfterReceiveIsDelivered(t *testing.T) {
	t.Parallel()
	var f Fanout
	s := f.Subscribe("mail")
	defer s.Close()
	for range 3 {
		f.Ring("mail")
		<-s.C()
	}
	if woken(s) {
		t.Error("woken without a ring")
	}
}

func TestFanoutCloseKeepsPendingWakeup(t *testing.T) {
	t.Parallel()
	var f Fanout
	s := f.Subscribe()
	f.Ring("mail")
	s.Close()
	if !woken(s) {
		t.Error("pending wake-up lost")
	}
	if woken(s) {
		t.Error("channel is closed")
	}
}

func TestFanoutConcurrently(t *testing.T) {
	t.Parallel()
	var f Fanout
	last := f.Subscribe("mail")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				s := f.Subscribe("mail", "image")
				f.Ring("image")
				<-s.C()
				s.Close()
			}
		})
		wg.Go(func() {
			for range 200 {
				f.Ring("mail")
				f.RingAll()
			}
		})
	}
	wg.Wait()
	if !woken(last) {
		t.Error("not woken")
	}
	last.Close()
	if len(f.all)+len(f.topics) != 0 {
		t.Errorf("left behind: %v, %v", f.all, f.topics)
	}
}

func woken(s *Subscription) bool {
	select {
	case _, open := <-s.C():
		return open
	default:
		return false
	}
}
