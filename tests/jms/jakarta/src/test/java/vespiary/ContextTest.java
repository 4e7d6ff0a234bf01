package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** The simplified API of JMS 2.0, asynchronous sends and anonymous producers. */
class ContextTest {
    /** Notes what was confirmed. */
    private static final class Confirmed implements CompletionListener {
        final List<String> texts = new CopyOnWriteArrayList<>();
        final List<Exception> failures = new CopyOnWriteArrayList<>();
        final CountDownLatch latch;

        Confirmed(int count) {
            latch = new CountDownLatch(count);
        }

        @Override
        public void onCompletion(Message message) {
            try {
                texts.add(Broker.text(message));
            } catch (JMSException error) {
                failures.add(error);
            }
            latch.countDown();
        }

        @Override
        public void onException(Message message, Exception error) {
            failures.add(error);
            latch.countDown();
        }
    }

    @Test
    void aContextSendsAndReceives() {
        try (JMSContext context = Broker.context()) {
            Queue queue = context.createQueue(Broker.name("context"));
            context.createProducer().setProperty("n", 1).setJMSType("t").setPriority(6).send(queue, "text");
            context.createProducer().send(queue, Map.of("key", 7));
            context.createProducer().send(queue, new byte[] {1, 2});
            var consumer = context.createConsumer(queue);
            Message first = consumer.receive(Broker.WAIT_MS);
            try {
                assertEquals("text", first.getBody(String.class));
                assertEquals(1, first.getIntProperty("n"));
                assertEquals("t", first.getJMSType());
                assertEquals(6, first.getJMSPriority());
            } catch (JMSException error) {
                throw new AssertionError(error);
            }
            assertEquals(7, consumer.receiveBody(Map.class, Broker.WAIT_MS).get("key"));
            assertEquals(2, consumer.receiveBody(byte[].class, Broker.WAIT_MS).length);
        }
    }

    @Test
    void aTransactedContextCommitsAndRollsBack() {
        try (JMSContext context = Broker.factory("").createContext(JMSContext.SESSION_TRANSACTED);
                JMSContext other = context.createContext(JMSContext.CLIENT_ACKNOWLEDGE)) {
            Queue queue = context.createQueue(Broker.name("context"));
            context.createProducer().send(queue, "dropped");
            context.rollback();
            context.createProducer().send(queue, "kept");
            context.commit();
            var consumer = other.createConsumer(queue);
            assertEquals("kept", consumer.receiveBody(String.class, Broker.WAIT_MS));
            other.recover();
            assertEquals("kept", consumer.receiveBody(String.class, Broker.WAIT_MS));
            other.acknowledge();
            assertNull(consumer.receiveBody(String.class, Broker.QUIET_MS));
        }
    }

    @Test
    void aContextHasSharedDurableConsumers() {
        try (JMSContext context = Broker.context()) {
            Topic topic = context.createTopic(Broker.name("context"));
            String name = Broker.name("subscription");
            context.createSharedDurableConsumer(topic, name).close();
            context.createProducer().send(topic, "kept");
            var consumer = context.createSharedDurableConsumer(topic, name);
            assertEquals("kept", consumer.receiveBody(String.class, Broker.WAIT_MS));
            consumer.close();
            context.unsubscribe(name);
        }
    }

    @Test
    void asynchronousSendsAreConfirmedInOrder() throws Exception {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("async"));
            var producer = session.createProducer(queue);
            Confirmed confirmed = new Confirmed(1000);
            for (String text : Broker.numbers(1, 1000)) {
                producer.send(session.createTextMessage(text), confirmed);
            }
            assertTrue(confirmed.latch.await(Broker.WAIT_MS, TimeUnit.MILLISECONDS));
            assertEquals(List.of(), confirmed.failures);
            assertEquals(Broker.numbers(1, 1000), confirmed.texts);
            assertEquals(Broker.numbers(1, 1000), Broker.receive(session.createConsumer(queue), 1000));
        }
    }

    @Test
    void aRefusedMessageIsToldToItsSender() throws Exception {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue full = session.createQueue(Broker.name("full"));
            var producer = session.createProducer(full);
            byte[] body = new byte[40_000];
            assertThrows(JMSException.class, () -> {
                for (int number = 0; number < 20; number++) {
                    var message = session.createBytesMessage();
                    message.writeBytes(body);
                    producer.send(message);
                }
            });
            Confirmed confirmed = new Confirmed(1);
            var message = session.createBytesMessage();
            message.writeBytes(body);
            producer.send(message, confirmed);
            assertTrue(confirmed.latch.await(Broker.WAIT_MS, TimeUnit.MILLISECONDS));
            assertEquals(1, confirmed.failures.size());
            Queue other = session.createQueue(Broker.name("other"));
            Broker.send(session, other, "the session goes on");
            assertEquals("the session goes on", Broker.receive(session.createConsumer(other)));
        }
    }

    @Test
    void anAnonymousProducerSendsEverywhere() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("anonymous"));
            Topic topic = session.createTopic(Broker.name("anonymous"));
            var subscriber = session.createConsumer(topic);
            var producer = session.createProducer(null);
            producer.send(topic, session.createTextMessage("to the topic"));
            producer.send(queue, session.createTextMessage("to the queue"), DeliveryMode.PERSISTENT, 4, 0);
            assertEquals("to the topic", Broker.receive(subscriber));
            var consumer = session.createConsumer(queue);
            assertEquals("to the queue", Broker.receive(consumer));
            Session transacted = connection.createSession(Session.SESSION_TRANSACTED);
            transacted.createProducer(null).send(queue, transacted.createTextMessage("committed"));
            transacted.commit();
            assertEquals("committed", Broker.receive(consumer));
        }
    }
}
