package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.jms.ConnectionFactory;
import jakarta.jms.JMSContext;
import jakarta.jms.Queue;
import jakarta.jms.Topic;
import java.io.StringReader;
import java.util.Properties;
import javax.naming.InitialContext;
import javax.naming.NameNotFoundException;
import org.junit.jupiter.api.Test;

/** What the JMS journal serves as jndi.properties is looked up and used. */
class JndiTest {
    @Test
    void whatTheBrokerServesIsLookedUp() throws Exception {
        String name = Broker.name("jndi");
        Admin.post("/jms/queues", String.format("{\"name\": \"%s.queue\", \"jndiNames\": [\"jms/%s/queue\"]}", name, name));
        Admin.post("/jms/topics", String.format("{\"name\": \"%s.topic\", \"jndiNames\": [\"jms/%s/topic\"]}", name, name));
        Admin.post("/jms/connection-factories", String.format(
            "{\"name\": \"%s\", \"url\": \"%s?jms.clientIDPrefix=jndi\", \"jndiNames\": [\"jms/%s/factory\"]}", name, Broker.URL, name));
        Properties served = new Properties();
        served.load(new StringReader(Admin.get("/jms/jndi.properties")));
        InitialContext jndi = new InitialContext(served);
        ConnectionFactory factory = (ConnectionFactory) jndi.lookup("jms/" + name + "/factory");
        Queue queue = (Queue) jndi.lookup("jms/" + name + "/queue");
        Topic topic = (Topic) jndi.lookup("jms/" + name + "/topic");
        assertEquals(name + ".queue", queue.getQueueName());
        assertThrows(NameNotFoundException.class, () -> jndi.lookup("jms/" + name + "/other"));
        try (JMSContext context = factory.createContext(Broker.USER, Broker.PASSWORD)) {
            var subscriber = context.createConsumer(topic);
            context.createProducer().send(queue, "work").send(topic, "news");
            assertEquals("work", context.createConsumer(queue).receiveBody(String.class, Broker.WAIT_MS));
            assertEquals("news", subscriber.receiveBody(String.class, Broker.WAIT_MS));
        }
    }
}
