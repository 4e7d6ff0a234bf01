// Drives eclipse/paho.golang (MQTT 5) through what every client test does, and says what it saw as
// one line of JSON. Usage: five PORT ROOT
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sort"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"
)

const patience = 20 * time.Second

type client struct {
	*paho.Client
	came chan *paho.Publish
	conn net.Conn
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The time that all of it may take.
var life, end = context.WithTimeout(context.Background(), 2*patience)

func (c *client) take() *paho.Publish {
	select {
	case message := <-c.came:
		return message
	case <-time.After(patience):
		check(fmt.Errorf("no message within %s", patience))
		return nil
	}
}

func (c *client) publish(message *paho.Publish) {
	_, err := c.Publish(life, message)
	check(err)
}

func (c *client) subscribe(topics ...string) {
	wanted := &paho.Subscribe{}
	for _, topic := range topics {
		wanted.Subscriptions = append(wanted.Subscriptions, paho.SubscribeOptions{Topic: topic, QoS: 2})
	}
	_, err := c.Subscribe(life, wanted)
	check(err)
}

// open returns a client that is connected, and whether its session was there.
func open(port string, session *state.State, asked *paho.Connect) (*client, bool) {
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	check(err)
	c := &client{came: make(chan *paho.Publish, 100), conn: conn}
	c.Client = paho.NewClient(paho.ClientConfig{
		Conn:    conn,
		Session: session,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){
			func(received paho.PublishReceived) (bool, error) {
				c.came <- received.Packet
				return true, nil
			},
		},
	})
	answer, err := c.Connect(life, asked)
	check(err)
	return c, answer.SessionPresent
}

func main() {
	defer end()
	port, root := os.Args[1], os.Args[2]
	seen := map[string]any{}
	expiry := uint32(600)
	session := state.NewInMemory()
	named := func(name string) *paho.Connect {
		return &paho.Connect{ClientID: root + "-" + name, KeepAlive: 30, CleanStart: true}
	}
	lasting := named("receiver")
	lasting.Properties = &paho.ConnectProperties{SessionExpiryInterval: &expiry}
	sender, _ := open(port, state.NewInMemory(), named("sender"))
	receiver, _ := open(port, session, lasting)
	receiver.subscribe(root + "/#")

	levels := []int{}
	for qos := 0; qos < 3; qos++ {
		sender.publish(&paho.Publish{
			Topic: root + "/a", QoS: byte(qos), Payload: []byte(fmt.Sprintf("hello %d", qos)),
			Properties: &paho.PublishProperties{
				ContentType: "text/plain", User: paho.UserProperties{{Key: "colour", Value: "red"}},
			},
		})
		message := receiver.take()
		levels = append(levels, int(message.QoS))
		seen["payload"] = string(message.Payload)
		seen["colour"] = message.Properties.User.Get("colour")
		seen["contentType"] = message.Properties.ContentType
	}
	seen["qos"] = levels
	sender.publish(&paho.Publish{Topic: root + "/large", QoS: 2, Payload: make([]byte, 300000)})
	seen["largeBytes"] = len(receiver.take().Payload)

	sender.publish(&paho.Publish{Topic: root + "-kept", QoS: 1, Retain: true, Payload: []byte("kept")})
	late, _ := open(port, state.NewInMemory(), named("late"))
	late.subscribe(root+"-kept", root+"-will")
	kept := late.take()
	seen["retained"] = []any{string(kept.Payload), kept.Retain}

	mortal := named("dying")
	mortal.WillMessage = &paho.WillMessage{Topic: root + "-will", Payload: []byte("gone"), QoS: 1}
	dying, _ := open(port, state.NewInMemory(), mortal)
	check(dying.conn.Close())
	seen["will"] = string(late.take().Payload)

	check(receiver.Disconnect(&paho.Disconnect{}))
	for number := 1; number <= 3; number++ {
		sender.publish(&paho.Publish{
			Topic: root + "/away", QoS: byte(2 - number%2), Payload: []byte(fmt.Sprintf("away %d", number)),
		})
	}
	lasting.CleanStart = false
	back, isPresent := open(port, session, lasting)
	seen["sessionPresent"] = isPresent
	away := []string{}
	for len(away) < 3 {
		away = append(away, string(back.take().Payload))
	}
	sort.Strings(away)
	seen["away"] = away
	for _, each := range []*client{sender, late, back} {
		check(each.Disconnect(&paho.Disconnect{}))
	}
	check(json.NewEncoder(os.Stdout).Encode(seen))
}
