package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;

/** The example of docs/howto/jms.md, which test_jms.py puts beside these tests, works as it stands. */
class PageTest {
    @Test
    void theExampleWorks() throws Exception {
        PrintStream before = System.out;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
        try {
            Class.forName("Orders").getMethod("main", String[].class).invoke(null, (Object) new String[0]);
        } finally {
            System.setOut(before);
        }
        assertEquals("two apples, colour red", said.toString(StandardCharsets.UTF_8).strip());
    }
}
