// The Go client at work: NAME_SERVER TOPIC; prints JSON lines {feature: what was seen}, which are the
// same for every broker; null is what the client has no call for.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const deadline = 90 * time.Second

var (
	nameServer []string
	topic      string
	background = context.Background()
	large      = strings.Repeat("c", 6000)
)

func tell(what string, value any) {
	line, err := json.Marshal(map[string]any{what: value})
	must(err)
	fmt.Println(strings.ReplaceAll(string(line), large, "large"))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func made(body, tag string) *primitive.Message {
	message := primitive.NewMessage(topic, []byte(body))
	message.WithTag(tag).WithKeys([]string{"key-" + body[:2]})
	message.WithProperty("body", body[:2])
	return message
}

func producing(group string, options ...producer.Option) rocketmq.Producer {
	options = append(options, producer.WithNameServer(nameServer),
		producer.WithGroupName(topic+"-"+group), producer.WithInstanceName(group))
	found, err := rocketmq.NewProducer(options...)
	must(err)
	must(found.Start())
	return found
}

func send(sender rocketmq.Producer, messages ...*primitive.Message) *primitive.SendResult {
	result, err := sender.SendSync(background, messages...)
	must(err)
	return result
}

// A push consumer that runs until it is closed; rows is what came.
type received struct {
	lock     sync.Mutex
	bodies   []string
	rows     []string
	fails    bool
	onEach   func(*primitive.MessageExt)
	consumer rocketmq.PushConsumer
}

func receive(group string, selector consumer.MessageSelector, into *received, options ...consumer.Option) *received {
	options = append(options, consumer.WithNameServer(nameServer), consumer.WithGroupName(topic+"-"+group),
		consumer.WithInstance(group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	var err error
	into.consumer, err = rocketmq.NewPushConsumer(options...)
	must(err)
	must(into.consumer.Subscribe(topic, selector, into.take))
	must(into.consumer.Start())
	return into
}

func (r *received) take(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, each := range messages {
		body := string(each.Body)
		r.bodies = append(r.bodies, body)
		r.rows = append(r.rows, fmt.Sprint(body, " ", each.GetTags(), " ", each.GetKeys(), " ", each.ReconsumeTimes))
		if r.onEach != nil {
			r.onEach(each)
		}
		if r.fails && body == "fail" && each.ReconsumeTimes == 0 {
			return consumer.ConsumeRetryLater, nil
		}
	}
	return consumer.ConsumeSuccess, nil
}

func (r *received) seen() map[string]int {
	r.lock.Lock()
	defer r.lock.Unlock()
	found := map[string]int{}
	for _, body := range r.bodies {
		found[body]++
	}
	return found
}

func (r *received) await(bodies ...string) bool {
	return wait(func() bool {
		found := r.seen()
		for _, body := range bodies {
			if found[body] == 0 {
				return false
			}
		}
		return true
	})
}

func (r *received) close() []string {
	must(r.consumer.Shutdown())
	r.lock.Lock()
	defer r.lock.Unlock()
	sort.Strings(r.rows)
	return r.rows
}

func wait(condition func() bool) bool {
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return condition()
}

func from(offsets []int64) []int64 {
	found := make([]int64, len(offsets))
	for n, each := range offsets {
		found[n] = each - offsets[0]
	}
	return found
}

// What a transaction's producer says at once, and what it says when it is asked.
type decided struct {
	lock  sync.Mutex
	asked map[string]bool
}

func (d *decided) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "t0":
		return primitive.CommitMessageState
	case "t1":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (d *decided) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.asked[string(message.Body)] = true
	if string(message.Body) == "t1" { // a broker may ask before it knows what was said
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

func main() {
	nameServer, topic = []string{os.Args[1]}, os.Args[2]
	rlog.SetLogLevel("error")
	everything := consumer.MessageSelector{}
	sender := producing("producer", producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	wanted := []string{large, "fail", "oneway", "b0", "b1", "b2", "async", "late"}
	var sent []int
	for n := 0; n < 8; n++ {
		body := fmt.Sprintf("m%d", n)
		sent = append(sent, int(send(sender, made(body, string("AB"[n%2]))).Status))
		wanted = append(wanted, body)
	}
	tell("send", sent)
	tell("compressed", send(sender, made(large, "A")).Status)
	send(sender, made("fail", "A"))
	must(sender.SendOneWay(background, made("oneway", "A")))
	tell("batch", send(sender, made("b0", "A"), made("b1", "A"), made("b2", "A")).Status)
	answered := make(chan int, 1)
	must(sender.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
		must(err)
		answered <- int(result.Status)
	}, made("async", "A")))
	tell("asynchronous", <-answered)
	tell("delay level", send(sender, made("late", "A").WithDelayTimeLevel(1)).Status)
	hashing := producing("hashing", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	ordered, offsets := []string{"o0", "o1", "o2", "o3"}, []int64{}
	for _, body := range ordered {
		offsets = append(offsets, send(hashing, made(body, "A").WithShardingKey("one")).QueueOffset)
	}
	tell("in order", from(offsets))
	choosing := producing("choosing", producer.WithQueueSelector(producer.NewManualQueueSelector()))
	broker := send(hashing, made("where", "A")).MessageQueue.BrokerName
	third := &primitive.MessageQueue{Topic: topic, BrokerName: broker, QueueId: 2}
	var queues []int
	for _, body := range []string{"s0", "s1"} {
		message := made(body, "A")
		message.Queue = third
		queues = append(queues, send(choosing, message).MessageQueue.QueueId)
	}
	tell("selector", queues)
	wanted = append(append(wanted, ordered...), "s0", "s1")

	push := receive("push", everything, &received{fails: true})
	tell("all came", push.await(wanted...))
	wait(func() bool { return push.seen()["fail"] > 1 })
	tell("one-way", push.seen()["oneway"])
	tell("redelivery", push.seen()["fail"])
	outcomes := &decided{asked: map[string]bool{}}
	transactions, err := rocketmq.NewTransactionProducer(outcomes, producer.WithNameServer(nameServer),
		producer.WithGroupName(topic+"-transactions"), producer.WithInstanceName("transactions"))
	must(err)
	must(transactions.Start())
	for _, body := range []string{"t0", "t1", "t2"} {
		_, err := transactions.SendMessageInTransaction(background, made(body, "A"))
		must(err)
	}
	push.await("t0", "t2")
	outcomes.lock.Lock()
	// a real broker asks again before its mark is written, and commits what it is told twice
	came := push.seen()
	tell("transaction", []bool{came["t0"] > 0, came["t1"] == 0, came["t2"] > 0, outcomes.asked["t2"]})
	outcomes.lock.Unlock()
	must(transactions.Shutdown())
	tell("push", unlike(push.close(), "t", "fail"))

	tagged := receive("tagged", consumer.MessageSelector{Type: consumer.TAG, Expression: "B"}, &received{})
	tagged.await("m1", "m3", "m5", "m7")
	tell("tags", tagged.close())
	by := consumer.MessageSelector{Type: consumer.SQL92, Expression: "TAGS = 'A' AND body IN ('m0', 'm4', 'm5')"}
	chosen := receive("chosen", by, &received{})
	chosen.await("m0", "m4")
	tell("SQL92", chosen.close())
	orderly := receive("orderly", everything, &received{}, consumer.WithConsumerOrder(true))
	orderly.await(wanted...)
	var inOrder []string
	for _, body := range orderly.bodies {
		if body[0] == 'o' && len(body) == 2 {
			inOrder = append(inOrder, body)
		}
	}
	tell("push in order", inOrder)
	orderly.close()
	everyone := receive("everyone", everything, &received{}, consumer.WithConsumerModel(consumer.BroadCasting))
	everyone.await(wanted...)
	tell("broadcasting", unlike(everyone.close(), "t"))

	puller, err := rocketmq.NewPullConsumer(consumer.WithNameServer(nameServer),
		consumer.WithGroupName(topic+"-pull"), consumer.WithInstance("pull"))
	must(err)
	must(puller.Subscribe(topic, everything))
	must(puller.Start())
	pulled, err := puller.PullFrom(background, third, 1, 2)
	must(err)
	var at []int64
	for _, each := range pulled.GetMessageExts() {
		at = append(at, each.QueueOffset)
	}
	tell("pull", at)
	must(puller.Shutdown())

	questions := receive("replies", consumer.MessageSelector{Type: consumer.TAG, Expression: "Q"}, &received{
		onEach: func(message *primitive.MessageExt) {
			reply, err := consumer.CreateReplyMessage(message, nil)
			must(err)
			reply.Body = []byte("yes, " + string(message.Body)) // it drops what it is given
			send(sender, reply)
		}})
	answer, err := sender.Request(background, deadline, made("is it?", "Q"))
	must(err)
	tell("request-reply", string(answer.Body))
	questions.close()

	for _, each := range []rocketmq.Producer{sender, hashing, choosing} {
		must(each.Shutdown())
	}
	for _, feature := range []string{"timed", "lite pull, subscribed", "by key", "by unique key", "by id"} {
		tell(feature, nil)
	}
	tell("end", true)
}

func unlike(rows []string, starts ...string) []string {
	var found []string
	for _, row := range rows {
		keep := true
		for _, each := range starts {
			keep = keep && !strings.HasPrefix(row, each)
		}
		if keep {
			found = append(found, row)
		}
	}
	return found
}
