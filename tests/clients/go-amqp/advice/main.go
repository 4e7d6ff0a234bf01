// What docs/howto/clients/go-amqp.md tells under "What to know", shown by scenes for tests/integration/test_advice_go.py.
// Usage: advice SCENE PORT NAME ; says events as lines of JSON, and goes on with each line of its input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	amqp "github.com/Azure/go-amqp"
)

var input = bufio.NewScanner(os.Stdin)

func say(facts ...any) {
	line, _ := json.Marshal(facts)
	fmt.Println(string(line))
}

func told() { input.Scan() }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	scene, port, name := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	connection, err := amqp.Dial(ctx, "amqp://127.0.0.1:"+port, nil)
	check(err)
	session, err := connection.NewSession(ctx, nil)
	check(err)
	sender, err := session.NewSender(ctx, "/queue/"+name, nil)
	check(err)
	check(sender.Send(ctx, amqp.NewMessage([]byte("x")), nil)) // it has credit now
	switch scene {
	case "send":
		say("ready")
		told()
		check(sender.Send(ctx, amqp.NewMessage([]byte("x")), nil))
		say("sent")
	case "receipt":
		say("ready")
		told()
		receipt, err := sender.SendWithReceipt(ctx, amqp.NewMessage([]byte("x")), nil)
		check(err)
		say("given")
		_, err = receipt.Wait(ctx)
		check(err)
		say("sent")
	case "first", "second":
		options := &amqp.ReceiverOptions{Credit: 10}
		if scene == "second" {
			options.SettlementMode = amqp.ReceiverSettleModeSecond.Ptr()
		}
		check(sender.Send(ctx, amqp.NewMessage([]byte("x")), nil))
		receiver, err := session.NewReceiver(ctx, "/queue/"+name, options)
		check(err)
		message, err := receiver.Receive(ctx, nil)
		check(err)
		say("ready")
		told()
		check(receiver.AcceptMessage(ctx, message))
		say("accepted")
	case "cut":
		receiver, err := session.NewReceiver(ctx, "/queue/"+name, nil)
		check(err)
		message, err := receiver.Receive(ctx, nil)
		check(err)
		check(receiver.AcceptMessage(ctx, message))
		say("ready") // nothing is left that could come before the cut
		_, err = receiver.Receive(ctx, nil)
		say("ended", err != nil)
		<-connection.Done() // nothing of it runs any more
		say("over", sender.Send(ctx, amqp.NewMessage([]byte("x")), nil) != nil)
	}
}
