package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import jakarta.jms.TransactionRolledBackException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** A broker is killed (kill -9) and started again under clients that fail over: nothing confirmed is lost. */
@Execution(ExecutionMode.SAME_THREAD)
class FailoverTest {
    private static final String URL = "failover:(amqp://127.0.0.1:" + System.getProperty("vespiary.killed") + ")"
        + "?failover.initialReconnectDelay=50&failover.reconnectDelay=50&failover.useReconnectBackOff=false";
    private static final int SENT_MIN = 60;

    private static Connection connect(String clientId) throws JMSException {
        Connection connection = new JmsConnectionFactory(Broker.USER, Broker.PASSWORD, URL).createConnection();
        if (clientId != null) {
            connection.setClientID(clientId);
        }
        connection.start();
        return connection;
    }

    private static void killAndStart() {
        Admin.control("kill");
        Admin.control("start");
    }

    /** Returns how often each text comes. */
    private static Map<String, Integer> drained(Session session, Queue queue) throws JMSException {
        Map<String, Integer> counts = new HashMap<>();
        try (var consumer = session.createConsumer(queue)) {
            for (Message message = consumer.receive(2000); message != null; message = consumer.receive(500)) {
                counts.merge(Broker.text(message), 1, Integer::sum);
            }
        }
        return counts;
    }

    private static void join(Thread thread, AtomicReference<Throwable> failure) throws InterruptedException {
        thread.join(Broker.WAIT_MS);
        assertTrue(!thread.isAlive(), "the client goes on after the broker is back");
        if (failure.get() != null) {
            throw new AssertionError(failure.get());
        }
    }

    @Test
    void whatWasConfirmedIsThere() throws Exception {
        Queue queue;
        List<String> confirmed = new CopyOnWriteArrayList<>();
        AtomicBoolean isOver = new AtomicBoolean();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (Connection connection = connect(null)) {
            Session session = connection.createSession();
            queue = session.createQueue(Broker.name("killed"));
            var producer = session.createProducer(queue);
            Thread sender = new Thread(() -> {
                try {
                    for (int number = 0; !isOver.get(); number++) {
                        String text = Integer.toString(number);
                        producer.send(session.createTextMessage(text)); // returns when it is confirmed
                        confirmed.add(text);
                    }
                } catch (JMSException error) {
                    failure.set(error);
                }
            });
            sender.start();
            for (int round = 1; round <= 4; round++) {
                int enough = round * SENT_MIN;
                Broker.await("sending", () -> confirmed.size() >= enough || failure.get() != null);
                killAndStart();
            }
            int after = confirmed.size() + SENT_MIN;
            Broker.await("sending after the last kill", () -> confirmed.size() >= after || failure.get() != null);
            isOver.set(true);
            join(sender, failure);
        }
        try (Connection connection = connect(null)) {
            Map<String, Integer> found = drained(connection.createSession(), queue);
            List<String> lost = new ArrayList<>(confirmed);
            lost.removeAll(found.keySet());
            assertEquals(List.of(), lost, "confirmed and lost");
        }
    }

    @Test
    void transactionsAreWholeOrNothing() throws Exception {
        Queue in;
        Queue out;
        try (Connection connection = connect(null)) {
            Session session = connection.createSession();
            in = session.createQueue(Broker.name("in"));
            out = session.createQueue(Broker.name("out"));
            Broker.send(session, in, Broker.numbers(1, 200).toArray(String[]::new));
        }
        AtomicReference<Throwable> failure = new AtomicReference<>();
        List<String> committed = new CopyOnWriteArrayList<>();
        try (Connection connection = connect(null)) {
            Session session = connection.createSession(Session.SESSION_TRANSACTED);
            var consumer = session.createConsumer(in);
            var producer = session.createProducer(out);
            Thread mover = new Thread(() -> {
                try {
                    while (true) {
                        List<String> moved = new ArrayList<>();
                        try {
                            Message message = consumer.receive(committed.size() >= 200 ? 500 : 5000);
                            if (message == null) {
                                return;
                            }
                            for (; message != null; message = moved.size() < 5 ? consumer.receive(100) : null) {
                                moved.add(Broker.text(message));
                                producer.send(session.createTextMessage(Broker.text(message)));
                            }
                            session.commit();
                            committed.addAll(moved);
                        } catch (TransactionRolledBackException again) {
                            continue; // the connection failed over: what was moved comes again
                        }
                    }
                } catch (JMSException error) {
                    failure.set(error);
                }
            });
            mover.start();
            Broker.await("moving", () -> committed.size() >= 60 || failure.get() != null);
            killAndStart();
            join(mover, failure);
        }
        try (Connection connection = connect(null)) {
            Session session = connection.createSession();
            Map<String, Integer> moved = drained(session, out);
            Map<String, Integer> expected = new HashMap<>();
            Broker.numbers(1, 200).forEach(text -> expected.put(text, 1));
            assertEquals(expected, moved, "each exactly once");
            assertEquals(Map.of(), drained(session, in));
        }
    }

    @Test
    void consumersAndDurableSubscriptionsGoOn() throws Exception {
        try (Connection connection = connect(Broker.name("client"))) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(Broker.name("topic"));
            Queue queue = session.createQueue(Broker.name("queue"));
            var durable = session.createDurableConsumer(topic, "durable");
            var consumer = session.createConsumer(queue);
            Broker.send(session, topic, "before");
            killAndStart();
            Broker.send(session, topic, "after");
            Broker.send(session, queue, "work");
            assertEquals(List.of("before", "after"), Broker.receive(durable, 2));
            assertEquals("work", Broker.receive(consumer));
        }
    }
}
