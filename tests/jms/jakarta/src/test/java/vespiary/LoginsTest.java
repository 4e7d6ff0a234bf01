package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.JMSSecurityRuntimeException;
import jakarta.jms.Session;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Logins by SASL, and what a user may not do. */
class LoginsTest {
    @ParameterizedTest
    @ValueSource(strings = {"SCRAM-SHA-256", "PLAIN"})
    void usersLogInBy(String mechanism) throws JMSException {
        var factory = new JmsConnectionFactory(Broker.URL + "?amqp.saslMechanisms=" + mechanism);
        try (Connection connection = factory.createConnection(Broker.ADMIN, Broker.PASSWORD)) {
            connection.start();
            Session session = connection.createSession();
            var queue = session.createQueue(Broker.name("login"));
            Broker.send(session, queue, "let in");
            assertEquals("let in", Broker.receive(session.createConsumer(queue)));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"SCRAM-SHA-256", "PLAIN"})
    void aWrongPasswordIsTold(String mechanism) {
        var factory = new JmsConnectionFactory(Broker.URL + "?amqp.saslMechanisms=" + mechanism);
        assertThrows(JMSSecurityException.class, () -> factory.createConnection(Broker.USER, "wrong").start());
        assertThrows(JMSSecurityException.class, () -> factory.createConnection("nobody", Broker.PASSWORD).start());
        assertThrows(JMSSecurityRuntimeException.class, () -> factory.createContext(Broker.USER, "wrong").start());
    }

    private static void works(JmsConnectionFactory factory) throws JMSException {
        try (Connection connection = factory.createConnection()) {
            connection.start();
            Session session = connection.createSession();
            var queue = session.createQueue(Broker.name("login"));
            Broker.send(session, queue, "let in");
            assertEquals("let in", Broker.receive(session.createConsumer(queue)));
        }
    }

    private static String tls(String options) {
        String stores = System.getProperty("vespiary.stores");
        return "amqps://localhost:" + System.getProperty("vespiary.tls") + "?transport.storeType=PKCS12"
            + "&transport.trustStoreLocation=" + stores + "/trusted.p12&transport.trustStorePassword=secret"
            + options.replace("STORES", stores);
    }

    @Test
    void usersLogInThroughTls() throws JMSException {
        works(new JmsConnectionFactory(Broker.USER, Broker.PASSWORD, tls("")));
        String untrusted = tls("").replaceFirst("\\?.*", "");
        assertThrows(JMSException.class, () -> works(new JmsConnectionFactory(Broker.USER, Broker.PASSWORD, untrusted)));
    }

    @Test
    void aCertificateIsALogin() throws JMSException {
        works(new JmsConnectionFactory(tls("&amqp.saslMechanisms=EXTERNAL"
            + "&transport.keyStoreLocation=STORES/client.p12&transport.keyStorePassword=secret")));
    }

    @Test
    void usersLogInThroughAWebSocket() throws JMSException {
        works(new JmsConnectionFactory(Broker.USER, Broker.PASSWORD, Broker.URL.replace("amqp:", "amqpws:") + "/ws"));
    }

    @Test
    void nobodyIsLetInWithoutALogin() {
        assertThrows(JMSSecurityException.class, () -> new JmsConnectionFactory(Broker.URL).createConnection().start());
    }

    @Test
    void whatAUserMayNotDoIsTold() throws JMSException {
        try (Connection connection = new JmsConnectionFactory("guest", Broker.PASSWORD, Broker.URL).createConnection()) {
            connection.start();
            Session session = connection.createSession();
            var queue = session.createQueue(Broker.name("private"));
            assertThrows(JMSSecurityException.class, () -> session.createProducer(queue));
            assertThrows(JMSSecurityException.class, () -> session.createConsumer(queue));
            assertThrows(JMSSecurityException.class, () -> session.createProducer(null).send(queue, session.createMessage()));
        }
    }
}
