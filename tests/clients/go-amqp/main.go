// A stock client of AMQP 1.0 in Go: says OK or FAIL for each thing that it does.
// Usage: go-amqp PORT
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	amqp "github.com/Azure/go-amqp"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}
func t(name string, f func(ctx context.Context)) {
	defer func() {
		if r := recover(); r != nil {
			fmt.Println("FAIL", name, r)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	f(ctx)
	fmt.Println("OK", name)
}
func main() {
	url := "amqp://127.0.0.1:" + os.Args[1]
	dial := func(ctx context.Context, o *amqp.ConnOptions) (*amqp.Conn, *amqp.Session) {
		c, err := amqp.Dial(ctx, url, o)
		must(err)
		s, err := c.NewSession(ctx, nil)
		must(err)
		return c, s
	}
	t("roundtrip", func(ctx context.Context) {
		c, s := dial(ctx, nil)
		defer c.Close()
		snd, err := s.NewSender(ctx, "/queue/go1", nil)
		must(err)
		for i := 0; i < 100; i++ {
			must(snd.Send(ctx, &amqp.Message{Header: &amqp.MessageHeader{Durable: true}, Data: [][]byte{[]byte("x")}, ApplicationProperties: map[string]any{"n": int64(i)}}, nil))
		}
		r, err := s.NewReceiver(ctx, "/queue/go1", &amqp.ReceiverOptions{Credit: 10})
		must(err)
		for i := 0; i < 100; i++ {
			m, err := r.Receive(ctx, nil)
			must(err)
			if m.ApplicationProperties["n"].(int64) != int64(i) {
				panic("order")
			}
			must(r.AcceptMessage(ctx, m))
		}
	})
	t("spaces", func(ctx context.Context) {
		c, s := dial(ctx, nil)
		defer c.Close()
		for _, address := range []string{"/queue/two words", "/topic/two words", "two words::my queue"} {
			r, err := s.NewReceiver(ctx, address, &amqp.ReceiverOptions{Credit: 10})
			must(err)
			snd, err := s.NewSender(ctx, address, nil)
			must(err)
			must(snd.Send(ctx, &amqp.Message{Data: [][]byte{[]byte(address)}}, nil))
			m, err := r.Receive(ctx, nil)
			must(err)
			if string(m.GetData()) != address {
				panic(string(m.GetData()))
			}
			must(r.AcceptMessage(ctx, m))
			must(r.Close(ctx))
			must(snd.Close(ctx))
		}
		_, err := s.NewSender(ctx, "/queue/a\nb", nil)
		var refused *amqp.Error
		if !errors.As(err, &refused) || refused.Condition != amqp.ErrCondInvalidField {
			panic(err)
		}
	})
	t("second", func(ctx context.Context) {
		c, s := dial(ctx, nil)
		defer c.Close()
		snd, err := s.NewSender(ctx, "/queue/go2", &amqp.SenderOptions{RequestedReceiverSettleMode: amqp.ReceiverSettleModeSecond.Ptr()})
		must(err)
		must(snd.Send(ctx, amqp.NewMessage([]byte("a")), nil))
		must(snd.Send(ctx, amqp.NewMessage([]byte("b")), nil))
		r, err := s.NewReceiver(ctx, "/queue/go2", &amqp.ReceiverOptions{SettlementMode: amqp.ReceiverSettleModeSecond.Ptr()})
		must(err)
		for i := 0; i < 2; i++ {
			m, err := r.Receive(ctx, nil)
			must(err)
			must(r.AcceptMessage(ctx, m))
		}
	})
	t("large two-way, small frames", func(ctx context.Context) {
		c, s := dial(ctx, &amqp.ConnOptions{MaxFrameSize: 512})
		defer c.Close()
		snd, err := s.NewSender(ctx, "/queue/go3", nil)
		must(err)
		d := bytes.Repeat([]byte("0123456789"), 50000)
		must(snd.Send(ctx, amqp.NewMessage(d), nil))
		r, err := s.NewReceiver(ctx, "/queue/go3", nil)
		must(err)
		m, err := r.Receive(ctx, nil)
		must(err)
		if !bytes.Equal(m.GetData(), d) {
			panic("differs")
		}
		must(r.AcceptMessage(ctx, m))
	})
	t("outcomes", func(ctx context.Context) {
		c, s := dial(ctx, nil)
		defer c.Close()
		snd, _ := s.NewSender(ctx, "/queue/go4", nil)
		must(snd.Send(ctx, amqp.NewMessage([]byte("a")), nil))
		r, err := s.NewReceiver(ctx, "/queue/go4", nil)
		must(err)
		m, err := r.Receive(ctx, nil)
		must(err)
		must(r.ReleaseMessage(ctx, m))
		m, err = r.Receive(ctx, nil)
		must(err)
		if m.Header.DeliveryCount != 0 {
			panic("counted")
		}
		must(r.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{DeliveryFailed: true, Annotations: amqp.Annotations{"x-a": "b"}}))
		m, err = r.Receive(ctx, nil)
		must(err)
		if m.Header.DeliveryCount != 1 || m.Annotations["x-a"] != "b" {
			panic(fmt.Sprint("modified ", m.Header, m.Annotations))
		}
		must(r.RejectMessage(ctx, m, &amqp.Error{Condition: "app:x", Description: "d"}))
	})
	t("selector+drain", func(ctx context.Context) {
		c, s := dial(ctx, nil)
		defer c.Close()
		snd, _ := s.NewSender(ctx, "/queue/go5", nil)
		for i := 0; i < 4; i++ {
			must(snd.Send(ctx, &amqp.Message{Value: int64(i), ApplicationProperties: map[string]any{"n": int64(i)}}, nil))
		}
		r, err := s.NewReceiver(ctx, "/queue/go5", &amqp.ReceiverOptions{Credit: -1, Filters: []amqp.LinkFilter{amqp.NewSelectorFilter("n > 1")}})
		must(err)
		must(r.IssueCredit(10))
		for i := 0; i < 2; i++ {
			m, err := r.Receive(ctx, nil)
			must(err)
			must(r.AcceptMessage(ctx, m))
		}
		must(r.DrainCredit(ctx, nil))
		_, err = s.NewReceiver(ctx, "/queue/go5", &amqp.ReceiverOptions{Filters: []amqp.LinkFilter{amqp.NewSelectorFilter("n > > 1")}})
		var le *amqp.LinkError
		if !errors.As(err, &le) {
			var ae *amqp.Error
			if !errors.As(err, &ae) {
				panic(fmt.Sprint("no link error: ", err))
			}
		}
	})
	t("durable sub", func(ctx context.Context) {
		o := &amqp.ConnOptions{ContainerID: "go-durable"}
		c, s := dial(ctx, o)
		ro := &amqp.ReceiverOptions{Name: "sub", SourceDurability: amqp.DurabilityUnsettledState, SourceExpiryPolicy: amqp.ExpiryPolicyNever}
		_, err := s.NewReceiver(ctx, "/topic/got", ro)
		must(err)
		c.Close()
		c, s = dial(ctx, nil)
		snd, err := s.NewSender(ctx, "/topic/got", nil)
		must(err)
		must(snd.Send(ctx, amqp.NewMessage([]byte("later")), nil))
		c.Close()
		c, s = dial(ctx, o)
		defer c.Close()
		r, err := s.NewReceiver(ctx, "/topic/got", ro)
		must(err)
		m, err := r.Receive(ctx, nil)
		must(err)
		must(r.AcceptMessage(ctx, m))
	})
	t("dynamic", func(ctx context.Context) {
		c, s := dial(ctx, nil)
		defer c.Close()
		r, err := s.NewReceiver(ctx, "", &amqp.ReceiverOptions{DynamicAddress: true})
		must(err)
		snd, err := s.NewSender(ctx, r.Address(), nil)
		must(err)
		must(snd.Send(ctx, amqp.NewMessage([]byte("x")), nil))
		_, err = r.Receive(ctx, nil)
		must(err)
	})
	t("idle", func(ctx context.Context) {
		c, s := dial(ctx, &amqp.ConnOptions{IdleTimeout: 4 * time.Second})
		defer c.Close()
		time.Sleep(4500 * time.Millisecond) // longer than it does without a heart-beat
		_, err := s.NewSender(ctx, "/queue/go6", nil)
		must(err)
	})
}
