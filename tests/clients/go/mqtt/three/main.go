// Drives eclipse/paho.mqtt.golang (MQTT 3.1.1) through what every client test does, and says what it
// saw as one line of JSON. Usage: three PORT ROOT
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"sort"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

const patience = 20 * time.Second

type client struct {
	mqtt.Client
	came chan mqtt.Message
	conn net.Conn
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func done(token mqtt.Token) {
	if !token.WaitTimeout(patience) {
		check(fmt.Errorf("no answer within %s", patience))
	}
	check(token.Error())
}

func (c *client) take() mqtt.Message {
	select {
	case message := <-c.came:
		return message
	case <-time.After(patience):
		check(fmt.Errorf("no message within %s", patience))
		return nil
	}
}

// open returns a client that is connected, and whether its session was there.
func open(port, name string, set func(*mqtt.ClientOptions)) (*client, bool) {
	c := &client{came: make(chan mqtt.Message, 100)}
	options := mqtt.NewClientOptions().AddBroker("tcp://127.0.0.1:" + port).SetClientID(name).
		SetProtocolVersion(4).SetAutoReconnect(false).SetOrderMatters(true)
	options.SetDefaultPublishHandler(func(_ mqtt.Client, message mqtt.Message) { c.came <- message })
	options.SetCustomOpenConnectionFn(func(address *url.URL, _ mqtt.ClientOptions) (net.Conn, error) {
		var err error
		c.conn, err = net.Dial("tcp", address.Host)
		return c.conn, err
	})
	if set != nil {
		set(options)
	}
	c.Client = mqtt.NewClient(options)
	token := c.Connect()
	done(token)
	return c, token.(*mqtt.ConnectToken).SessionPresent()
}

func main() {
	port, root := os.Args[1], os.Args[2]
	seen := map[string]any{}
	lasting := func(options *mqtt.ClientOptions) { options.SetCleanSession(false) }
	sender, _ := open(port, root+"-sender", nil)
	receiver, _ := open(port, root+"-receiver", lasting)
	done(receiver.Subscribe(root+"/#", 2, nil))

	levels := []byte{}
	for qos := byte(0); qos < 3; qos++ {
		done(sender.Publish(root+"/a", qos, false, fmt.Sprintf("hello %d", qos)))
		message := receiver.take()
		levels = append(levels, message.Qos())
		seen["payload"] = string(message.Payload())
	}
	seen["qos"] = []int{int(levels[0]), int(levels[1]), int(levels[2])}
	done(sender.Publish(root+"/large", 2, false, make([]byte, 300000)))
	seen["largeBytes"] = len(receiver.take().Payload())

	done(sender.Publish(root+"-kept", 1, true, "kept"))
	late, _ := open(port, root+"-late", nil)
	done(late.SubscribeMultiple(map[string]byte{root + "-kept": 1, root + "-will": 1}, nil))
	kept := late.take()
	seen["retained"] = []any{string(kept.Payload()), kept.Retained()}

	dying, _ := open(port, root+"-dying", func(options *mqtt.ClientOptions) {
		options.SetWill(root+"-will", "gone", 1, false)
	})
	check(dying.conn.Close())
	seen["will"] = string(late.take().Payload())

	receiver.Disconnect(250)
	for number := 1; number <= 3; number++ {
		done(sender.Publish(root+"/away", byte(2-number%2), false, fmt.Sprintf("away %d", number)))
	}
	back, isPresent := open(port, root+"-receiver", lasting)
	seen["sessionPresent"] = isPresent
	away := []string{}
	for len(away) < 3 {
		away = append(away, string(back.take().Payload()))
	}
	sort.Strings(away)
	seen["away"] = away
	for _, each := range []*client{sender, late, back} {
		each.Disconnect(250)
	}
	check(json.NewEncoder(os.Stdout).Encode(seen))
}
