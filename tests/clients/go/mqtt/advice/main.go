// What docs/howto/clients tells of the two MQTT clients of Go under "What to know", shown by scenes for tests/integration/test_advice_go.py.
// Usage: advice SCENE PORT NAME FOLDER ; says events as lines of JSON, and goes on with each line of its input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	filequeue "github.com/eclipse/paho.golang/autopaho/queue/file"
	"github.com/eclipse/paho.golang/paho"
	mqtt "github.com/eclipse/paho.mqtt.golang"
)

var (
	input              = bufio.NewScanner(os.Stdin)
	port, name, folder string
)

func say(facts ...any) {
	line, _ := json.Marshal(facts)
	fmt.Println(string(line))
}

func told() string {
	input.Scan()
	return input.Text()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func done(token mqtt.Token) {
	token.WaitTimeout(60 * time.Second)
	check(token.Error())
}

// --- paho.mqtt.golang

func three(change func(*mqtt.ClientOptions)) mqtt.Client {
	options := mqtt.NewClientOptions().AddBroker("tcp://127.0.0.1:" + port).
		SetClientID(name).SetCleanSession(false).SetMaxReconnectInterval(time.Second)
	change(options)
	return mqtt.NewClient(options)
}

func threeBlocks() {
	client := three(func(*mqtt.ClientOptions) {})
	done(client.Connect())
	release := make(chan bool)
	number := 0
	done(client.Subscribe(name, 1, func(mqtt.Client, mqtt.Message) {
		number++
		say("begun", number)
		<-release
		say("ended", number)
	}))
	done(client.Publish(name, 1, false, "work"))
	done(client.Publish(name, 1, false, "work"))
	done(client.Publish(name+"/elsewhere", 1, false, "")) // its confirm comes behind both messages
	say("published")
	told()
	release <- true
	release <- true
	time.Sleep(100 * time.Millisecond)
}

func threeAway() {
	client := three(func(*mqtt.ClientOptions) {})
	token := client.Connect()
	token.WaitTimeout(60 * time.Second)
	say("failed", token.Error() != nil)
	again := three(func(options *mqtt.ClientOptions) {
		options.SetConnectRetry(true).SetConnectRetryInterval(200 * time.Millisecond)
	})
	token = again.Connect()
	say("waits", !token.WaitTimeout(500*time.Millisecond))
}

func threeComesBack() {
	client := three(func(options *mqtt.ClientOptions) {
		options.SetOnConnectHandler(func(mqtt.Client) { say("connected") })
		options.SetDefaultPublishHandler(func(_ mqtt.Client, message mqtt.Message) {
			say("message", string(message.Payload()))
		})
	})
	done(client.Connect())
	done(client.Subscribe(name, 1, nil))
	say("ready")
	told()
}

func threeAcknowledges() {
	client := three(func(options *mqtt.ClientOptions) {
		options.SetDefaultPublishHandler(func(_ mqtt.Client, message mqtt.Message) {
			say("message", string(message.Payload()))
			told() // the test has cut it off, or not
		})
	})
	done(client.Connect())
	done(client.Subscribe(name, 1, nil))
	client.Publish(name, 1, false, "work")
	time.Sleep(60 * time.Second)
}

func threeLeaves() {
	client := three(func(options *mqtt.ClientOptions) { options.SetOrderMatters(false) })
	done(client.Connect())
	say("connected")
	told()
	token := client.Publish(name, 1, false, "x")
	client.Disconnect(600_000) // longer than the test waits for it
	say("left", token.WaitTimeout(0) && token.Error() == nil)
}

func threeAcknowledgesAndLeaves() {
	messages := make(chan mqtt.Message, 10)
	client := three(func(options *mqtt.ClientOptions) {
		options.SetAutoAckDisabled(true)
		options.SetDefaultPublishHandler(func(_ mqtt.Client, message mqtt.Message) { messages <- message })
	})
	done(client.Connect())
	done(client.Subscribe(name, 1, nil))
	done(client.Publish(name, 1, false, "x"))
	message := <-messages
	message.Ack()
	client.Disconnect(1000)
	say("left")
}

func threeKeeps() {
	client := three(func(options *mqtt.ClientOptions) {
		options.SetStore(mqtt.NewFileStore(folder))
		options.SetOnConnectHandler(func(mqtt.Client) { say("connected") })
	})
	done(client.Connect())
	told()
	client.Publish(name, 1, false, "x")
	say("published")
	told()
}

func threeResumes() {
	client := three(func(options *mqtt.ClientOptions) { options.SetStore(mqtt.NewFileStore(folder)) })
	done(client.Connect())
	say("connected")
	told()
	client.Disconnect(1000)
}

// --- paho.golang

func five(change func(*autopaho.ClientConfig)) *autopaho.ConnectionManager {
	broker, err := url.Parse("mqtt://127.0.0.1:" + port)
	check(err)
	config := autopaho.ClientConfig{
		ServerUrls: []*url.URL{broker}, KeepAlive: 60, SessionExpiryInterval: 600,
		ReconnectBackoff: func(int) time.Duration { return 200 * time.Millisecond },
		OnConnectionUp:   func(*autopaho.ConnectionManager, *paho.Connack) { say("connected") },
		ClientConfig: paho.ClientConfig{
			ClientID: name,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){
				func(received paho.PublishReceived) (bool, error) {
					say("message", string(received.Packet.Payload))
					told()
					return true, nil
				},
			},
		},
	}
	change(&config)
	manager, err := autopaho.NewConnection(context.Background(), config)
	check(err)
	check(manager.AwaitConnection(context.Background()))
	return manager
}

func subscribe(manager *autopaho.ConnectionManager) {
	_, err := manager.Subscribe(context.Background(), &paho.Subscribe{
		Subscriptions: []paho.SubscribeOptions{{Topic: name, QoS: 1}},
	})
	check(err)
}

func publish(manager *autopaho.ConnectionManager, text string) error {
	_, err := manager.Publish(context.Background(), &paho.Publish{Topic: name, QoS: 1, Payload: []byte(text)})
	return err
}

func fivePublishes() {
	manager := five(func(config *autopaho.ClientConfig) {
		config.OnClientError = func(error) { say("down") }
	})
	for {
		told()
		say("published", publish(manager, "x") == nil)
	}
}

func fiveAcknowledges() {
	manager := five(func(*autopaho.ClientConfig) {})
	subscribe(manager)
	say("subscribed")
	time.Sleep(60 * time.Second)
}

func fiveQueues() {
	queue, err := filequeue.New(folder, "queue", ".message")
	check(err)
	manager := five(func(config *autopaho.ClientConfig) {
		config.Queue = queue
		config.OnClientError = func(error) { say("down") }
	})
	text := told()
	if os.Args[1] == "fiveQueues" {
		check(manager.PublishViaQueue(context.Background(), &autopaho.QueuePublish{
			Publish: &paho.Publish{Topic: name, QoS: 1, Payload: []byte(text)},
		}))
		say("queued")
	}
	told()
}

func fiveAlone() {
	connection, err := net.Dial("tcp", "127.0.0.1:"+port)
	check(err)
	ended := make(chan error, 10)
	client := paho.NewClient(paho.ClientConfig{Conn: connection, ClientID: name, OnClientError: func(err error) { ended <- err }})
	_, err = client.Connect(context.Background(), &paho.Connect{ClientID: name, KeepAlive: 60, CleanStart: true})
	check(err)
	say("connected")
	err = <-ended
	say("ended", err == io.EOF || err != nil)
	<-client.Done() // nothing of it runs any more
	say("over")
}

func main() {
	port, name, folder = os.Args[2], os.Args[3], os.Args[4]
	map[string]func(){
		"threeBlocks": threeBlocks, "threeAway": threeAway, "threeComesBack": threeComesBack,
		"threeAcknowledges": threeAcknowledges, "threeLeaves": threeLeaves, "threeKeeps": threeKeeps,
		"threeAcknowledgesAndLeaves": threeAcknowledgesAndLeaves, "threeResumes": threeResumes,
		"fivePublishes": fivePublishes, "fiveAcknowledges": fiveAcknowledges,
		"fiveQueues": fiveQueues, "fiveResumes": fiveQueues, "fiveAlone": fiveAlone,
	}[os.Args[1]]()
}
