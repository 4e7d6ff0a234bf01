package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.QueueRequestor;
import jakarta.jms.QueueSession;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import java.util.List;
import org.apache.qpid.jms.JmsQueueConnection;
import org.junit.jupiter.api.Test;

/** Temporary queues and topics, request and reply. */
class TemporaryDestinationsTest {
    @Test
    void aRequestIsAnsweredToATemporaryQueue() throws JMSException {
        try (Connection asking = Broker.connect(); Connection answering = Broker.connect()) {
            Session client = asking.createSession();
            Session server = answering.createSession();
            Queue requests = client.createQueue(Broker.name("requests"));
            TemporaryQueue replies = client.createTemporaryQueue();
            Message request = client.createTextMessage("question");
            request.setJMSReplyTo(replies);
            client.createProducer(requests).send(request);

            Message asked = server.createConsumer(requests).receive(Broker.WAIT_MS);
            TextMessage answer = server.createTextMessage("answer to " + Broker.text(asked));
            answer.setJMSCorrelationID(asked.getJMSMessageID());
            server.createProducer(null).send(asked.getJMSReplyTo(), answer);

            Message got = client.createConsumer(replies).receive(Broker.WAIT_MS);
            assertEquals("answer to question", Broker.text(got));
            assertEquals(request.getJMSMessageID(), got.getJMSCorrelationID());
        }
    }

    @Test
    void aQueueRequestorWorks() throws JMSException {
        var factory = (org.apache.qpid.jms.JmsConnectionFactory) Broker.factory("");
        try (JmsQueueConnection connection = (JmsQueueConnection) factory.createQueueConnection()) {
            connection.start();
            QueueSession session = connection.createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
            QueueSession server = connection.createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
            Queue requests = session.createQueue(Broker.name("requests"));
            server.createConsumer(requests).setMessageListener(request -> {
                try (var producer = server.createProducer(request.getJMSReplyTo())) {
                    producer.send(server.createTextMessage(Broker.text(request) + "!"));
                } catch (JMSException error) {
                    throw new IllegalStateException(error);
                }
            });
            assertEquals("hello!", Broker.text(new QueueRequestor(session, requests).request(session.createTextMessage("hello"))));
        }
    }

    @Test
    void aTemporaryTopicReachesAllItsSubscribers() throws JMSException {
        try (Connection connection = Broker.connect(); Connection other = Broker.connect()) {
            Session session = connection.createSession();
            TemporaryTopic topic = session.createTemporaryTopic();
            var first = session.createConsumer(topic);
            var second = session.createConsumer(topic);
            Broker.send(other.createSession(), topic, "1", "2");
            assertEquals(List.of("1", "2"), Broker.receive(first, 2));
            assertEquals(List.of("1", "2"), Broker.receive(second, 2));
            first.close();
            second.close();
            topic.delete();
        }
    }

    @Test
    void aTemporaryQueueGoesWhenItIsDeletedAndWithItsConnection() throws Exception {
        try (Connection other = Broker.connect()) {
            Session session = other.createSession();
            TemporaryQueue deleted;
            TemporaryQueue closed;
            try (Connection connection = Broker.connect()) {
                Session its = connection.createSession();
                deleted = its.createTemporaryQueue();
                closed = its.createTemporaryQueue();
                Broker.send(its, deleted, "lost");
                deleted.delete();
                assertTrue(!Admin.queueIs(deleted.getQueueName()));
                assertTrue(Admin.queueIs(closed.getQueueName()));
            }
            String name = closed.getQueueName();
            Broker.await("the end of the temporary queue", () -> !Admin.queueIs(name));
            assertThrows(JMSException.class, () -> session.createConsumer(closed), "it is another connection's");
        }
    }

    @Test
    void aTemporaryQueueIsReadByItsConnectionAlone() throws JMSException {
        try (Connection connection = Broker.connect(); Connection other = Broker.connect()) {
            TemporaryQueue queue = connection.createSession().createTemporaryQueue();
            Session session = other.createSession();
            assertThrows(JMSException.class, () -> session.createConsumer(queue));
            Broker.send(session, queue, "sending is allowed");
            assertEquals("sending is allowed", Broker.receive(connection.createSession().createConsumer(queue)));
        }
    }
}
