package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Topics: subscriptions that are plain, durable, shared, and both. */
class SubscriptionsTest {
    private static void publish(Topic topic, String... texts) throws JMSException {
        try (Connection connection = Broker.connect()) {
            Broker.send(connection.createSession(), topic, texts);
        }
    }

    private static Topic topic(Session session) throws JMSException {
        return session.createTopic(Broker.name("topic"));
    }

    @Test
    void everySubscriberGetsAMessageAndLateOnesDoNot() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Topic topic = topic(session);
            publish(topic, "too early");
            var first = session.createConsumer(topic);
            var second = session.createConsumer(topic);
            publish(topic, "1", "2");
            assertEquals(List.of("1", "2"), Broker.receive(first, 2));
            assertEquals(List.of("1", "2"), Broker.receive(second, 2));
            assertNull(Broker.soon(first));
        }
    }

    @Test
    void noLocalLeavesOutWhatTheOwnConnectionSends() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Topic topic = topic(session);
            var consumer = session.createConsumer(topic, null, true);
            Broker.send(session, topic, "mine");
            publish(topic, "another's");
            assertEquals("another's", Broker.receive(consumer));
            assertNull(Broker.soon(consumer));
        }
    }

    @Test
    void aDurableSubscriptionKeepsWhatComesMeanwhile() throws JMSException {
        String client = Broker.name("client");
        Topic topic;
        try (Connection connection = Broker.connectAs(client)) {
            Session session = connection.createSession();
            topic = topic(session);
            var consumer = session.createDurableSubscriber(topic, "audit");
            publish(topic, "online");
            assertEquals("online", Broker.receive(consumer));
        }
        publish(topic, "1", "2");
        try (Connection connection = Broker.connectAs(client)) {
            Session session = connection.createSession();
            assertEquals(List.of("1", "2"), Broker.receive(session.createDurableSubscriber(topic, "audit"), 2));
        }
        try (Connection connection = Broker.connectAs(client)) {
            Session session = connection.createSession();
            var consumer = session.createDurableConsumer(topic, "audit");
            assertNull(Broker.soon(consumer));
            consumer.close();
            session.unsubscribe("audit");
        }
        publish(topic, "to nobody");
        try (Connection connection = Broker.connectAs(client)) {
            assertNull(Broker.soon(connection.createSession().createDurableConsumer(topic, "audit")));
        }
    }

    @Test
    void unsubscribingWantsAnIdleSubscriptionThatIsThere() throws JMSException {
        try (Connection connection = Broker.connectAs(Broker.name("client"))) {
            Session session = connection.createSession();
            assertThrows(InvalidDestinationException.class, () -> session.unsubscribe("nobody's"));
            var consumer = session.createDurableConsumer(topic(session), "busy");
            assertThrows(JMSException.class, () -> session.unsubscribe("busy"));
            consumer.close();
            session.unsubscribe("busy");
            assertThrows(InvalidDestinationException.class, () -> session.unsubscribe("busy"));
        }
    }

    @Test
    void aDurableSubscriptionHasOneConsumer() throws JMSException {
        try (Connection connection = Broker.connectAs(Broker.name("client"))) {
            Session session = connection.createSession();
            Topic topic = topic(session);
            var consumer = session.createDurableConsumer(topic, "one");
            assertThrows(JMSException.class, () -> connection.createSession().createDurableConsumer(topic, "one"));
            publish(topic, "still works");
            assertEquals("still works", Broker.receive(consumer));
        }
    }

    @Test
    void aClientIdIsUsedOnce() throws JMSException {
        String client = Broker.name("client");
        try (Connection connection = Broker.connectAs(client)) {
            assertEquals(client, connection.getClientID());
            assertThrows(InvalidClientIDException.class, () -> Broker.connectAs(client));
        }
        Broker.connectAs(client).close();
    }

    @Test
    void anotherSelectorOrTopicBeginsADurableSubscriptionAnew() throws JMSException {
        try (Connection connection = Broker.connectAs(Broker.name("client"))) {
            Session session = connection.createSession();
            Topic topic = topic(session);
            session.createDurableConsumer(topic, "changing").close();
            publish(topic, "for the first");
            session.createDurableConsumer(topic, "changing", "JMSPriority = 4", false).close();
            publish(topic, "for the second");
            var consumer = session.createDurableConsumer(topic, "changing", "JMSPriority = 4", false);
            assertEquals("for the second", Broker.receive(consumer));
            publish(topic, "lost with its topic");
            consumer.close();
            Topic other = topic(session);
            var moved = session.createDurableConsumer(other, "changing");
            publish(topic, "to the old one");
            publish(other, "to the new one");
            assertEquals("to the new one", Broker.receive(moved));
            assertNull(Broker.soon(moved));
        }
    }

    @Test
    void aDurableSubscriptionWithNoLocalStaysOneOverItsConnections() throws JMSException {
        String client = Broker.name("client");
        Topic topic;
        try (Connection connection = Broker.connectAs(client)) {
            Session session = connection.createSession();
            topic = topic(session);
            session.createDurableSubscriber(topic, "local", null, true);
            Broker.send(session, topic, "mine");
            publish(topic, "another's");
        }
        try (Connection connection = Broker.connectAs(client)) {
            var consumer = connection.createSession().createDurableSubscriber(topic, "local", null, true);
            assertEquals("another's", Broker.receive(consumer));
            assertNull(Broker.soon(consumer));
        }
    }

    private static List<String> all(MessageConsumer... consumers) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (MessageConsumer consumer : consumers) {
            List<String> own = new ArrayList<>();
            for (String text = Broker.soon(consumer); text != null; text = Broker.soon(consumer)) {
                own.add(text);
            }
            assertTrue(consumers.length == 1 || !own.isEmpty(), "each gets a share");
            texts.addAll(own);
        }
        texts.sort((left, right) -> Integer.compare(Integer.parseInt(left), Integer.parseInt(right)));
        return texts;
    }

    @Test
    void consumersShareASubscription() throws JMSException {
        try (Connection one = Broker.connect("?jms.prefetchPolicy.all=1"); Connection two = Broker.connect("?jms.prefetchPolicy.all=1")) {
            Session first = one.createSession();
            Session second = two.createSession();
            Topic topic = topic(first);
            String name = Broker.name("shared");
            var left = first.createSharedConsumer(topic, name);
            var right = second.createSharedConsumer(topic, name);
            var alone = second.createConsumer(topic);
            publish(topic, Broker.numbers(1, 20).toArray(String[]::new));
            assertEquals(Broker.numbers(1, 20), all(left, right));
            assertEquals(Broker.numbers(1, 20), all(alone));
        }
    }

    @Test
    void consumersOfOneConnectionShareASubscription() throws JMSException {
        try (Connection connection = Broker.connectAs(Broker.name("client"))) {
            Session session = connection.createSession();
            Topic topic = topic(session);
            var left = session.createSharedConsumer(topic, "both");
            var right = connection.createSession().createSharedConsumer(topic, "both");
            publish(topic, "1");
            String text = Broker.soon(left);
            assertEquals("1", text == null ? Broker.receive(right) : text);
            assertNull(Broker.soon(left));
            assertNull(Broker.soon(right));
        }
    }

    @Test
    void aSharedSubscriptionGoesWithItsLastConsumer() throws JMSException {
        String name = Broker.name("shared");
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Topic topic = topic(session);
            session.createSharedConsumer(topic, name).close();
            publish(topic, "to nobody");
            assertNull(Broker.soon(session.createSharedConsumer(topic, name)));
        }
    }

    @Test
    void aSharedDurableSubscriptionKeepsWhatComesMeanwhile() throws JMSException {
        String name = Broker.name("shared");
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Topic topic = topic(session);
            session.createSharedDurableConsumer(topic, name).close();
            publish(topic, "1", "2");
            try (Connection other = Broker.connect()) {
                Session its = other.createSession();
                var consumer = its.createSharedDurableConsumer(topic, name);
                assertEquals(List.of("1", "2"), Broker.receive(consumer, 2));
                assertThrows(JMSException.class, () -> session.unsubscribe(name), "it is in use");
            }
            session.unsubscribe(name);
            publish(topic, "to nobody");
            assertNull(Broker.soon(session.createSharedDurableConsumer(topic, name)));
        }
    }

    @Test
    void aSharedDurableSubscriptionOfAClientIsItsOwn() throws JMSException {
        String client = Broker.name("client");
        try (Connection own = Broker.connectAs(client); Connection other = Broker.connectAs(client + "2")) {
            Session mine = own.createSession();
            Session others = other.createSession();
            Topic topic = topic(mine);
            var first = mine.createSharedDurableConsumer(topic, "same");
            var second = others.createSharedDurableConsumer(topic, "same");
            publish(topic, "to both");
            assertEquals("to both", Broker.receive(first));
            assertEquals("to both", Broker.receive(second));
            first.close();
            second.close();
            mine.unsubscribe("same");
            others.unsubscribe("same");
        }
    }

    @Test
    void aSharedSubscriptionInUseKeepsItsSelectorAndTopic() throws JMSException {
        String name = Broker.name("shared");
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Topic topic = topic(session);
            var consumer = session.createSharedConsumer(topic, name, "n = 1");
            assertThrows(JMSException.class, () -> session.createSharedConsumer(topic, name, "n = 2"));
            assertThrows(JMSException.class, () -> session.createSharedConsumer(topic(session), name, "n = 1"));
            Message message = session.createTextMessage("matches");
            message.setIntProperty("n", 1);
            session.createProducer(topic).send(message);
            assertEquals("matches", Broker.receive(consumer));
        }
    }
}
