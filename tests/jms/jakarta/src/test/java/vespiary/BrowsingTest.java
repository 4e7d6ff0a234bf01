package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.jms.Connection;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;

/** Browsers look and take nothing. */
@TestInstance(TestInstance.Lifecycle.PER_METHOD)
class BrowsingTest {
    private Connection connection;
    private Session session;
    private Queue queue;

    @BeforeEach
    void open() throws JMSException {
        connection = Broker.connect("?jms.prefetchPolicy.queueBrowserPrefetch=20");
        session = connection.createSession();
        queue = session.createQueue(Broker.name("browsed"));
    }

    @AfterEach
    void close() throws JMSException {
        connection.close();
    }

    private static List<String> texts(QueueBrowser browser) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (Object message : Collections.list((Enumeration<?>) browser.getEnumeration())) {
            texts.add(Broker.text((Message) message));
        }
        return texts;
    }

    @Test
    void aBrowserSeesAllAndTakesNothing() throws JMSException {
        Broker.send(session, queue, Broker.numbers(1, 200).toArray(String[]::new));
        QueueBrowser browser = session.createBrowser(queue);
        assertEquals(Broker.numbers(1, 200), texts(browser));
        assertEquals(Broker.numbers(1, 200), texts(browser), "each enumeration begins anew");
        assertEquals(Broker.numbers(1, 200), Broker.receive(session.createConsumer(queue), 200));
    }

    @Test
    void anEmptyQueueHasNothingToSee() throws JMSException {
        QueueBrowser browser = session.createBrowser(queue);
        assertFalse(browser.getEnumeration().hasMoreElements());
        Broker.send(session, queue, "new");
        assertEquals(List.of("new"), texts(browser));
    }

    @Test
    void aBrowserWithASelectorSeesWhatItMatches() throws JMSException {
        var producer = session.createProducer(queue);
        for (int number = 0; number < 50; number++) {
            Message message = session.createTextMessage(Integer.toString(number));
            message.setIntProperty("tens", number / 10);
            producer.send(message);
        }
        assertEquals(Broker.numbers(20, 29), texts(session.createBrowser(queue, "tens = 2")));
        assertEquals(List.of(), texts(session.createBrowser(queue, "tens = '2'")));
        assertThrows(InvalidSelectorException.class, () -> session.createBrowser(queue, "tens =").getEnumeration());
    }

    @Test
    void aBrowserGoesOnWhileTheQueueIsConsumed() throws JMSException {
        Broker.send(session, queue, Broker.numbers(1, 200).toArray(String[]::new));
        Enumeration<?> browsing = session.createBrowser(queue).getEnumeration();
        assertEquals("1", Broker.text((Message) browsing.nextElement()));
        assertEquals(Broker.numbers(1, 200), Broker.receive(session.createConsumer(queue), 200));
        int last = 1;
        while (browsing.hasMoreElements()) {
            int number = Integer.parseInt(Broker.text((Message) browsing.nextElement()));
            assertEquals(true, number > last, "in order, none twice");
            last = number;
        }
        assertEquals(List.of(), texts(session.createBrowser(queue)));
    }

    @Test
    void whatATransactionHoldsIsNotSeen() throws JMSException {
        Session transacted = connection.createSession(Session.SESSION_TRANSACTED);
        Broker.send(transacted, queue, "not yet");
        assertEquals(List.of(), texts(session.createBrowser(queue)));
        transacted.commit();
        assertEquals(List.of("not yet"), texts(session.createBrowser(queue)));
    }
}
