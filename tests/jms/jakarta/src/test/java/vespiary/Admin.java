package vespiary;

import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** The broker's HTTP API, and the one by which test_jms.py kills and starts a broker. */
final class Admin {
    private static final HttpClient CLIENT = HttpClient.newHttpClient();

    private Admin() {}

    private static HttpResponse<String> ask(String method, String url, String body) {
        String login = Base64.getEncoder().encodeToString((Broker.ADMIN + ":" + Broker.PASSWORD).getBytes(StandardCharsets.UTF_8));
        HttpRequest request = HttpRequest.newBuilder(URI.create(url))
            .header("Authorization", "Basic " + login)
            .header("Content-Type", "application/json")
            .method(method, HttpRequest.BodyPublishers.ofString(body))
            .build();
        try {
            return CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String api(String path) {
        return "http://127.0.0.1:" + System.getProperty("vespiary.http") + "/api/v1" + path;
    }

    static boolean queueIs(String name) {
        int status = ask("GET", api("/queues/" + URLEncoder.encode(name, StandardCharsets.UTF_8)), "").statusCode();
        if (status != 200 && status != 404) {
            throw new IllegalStateException("the API answers " + status);
        }
        return status == 200;
    }

    static String get(String path) {
        return checked(ask("GET", api(path), ""));
    }

    static void post(String path, String json) {
        checked(ask("POST", api(path), json));
    }

    /** Has test_jms.py do something with the broker that may be killed: {@code kill} or {@code start}. */
    static void control(String act) {
        checked(ask("POST", "http://127.0.0.1:" + System.getProperty("vespiary.control") + "/" + act, ""));
    }

    private static String checked(HttpResponse<String> answer) {
        if (answer.statusCode() >= 300) {
            throw new IllegalStateException(answer.uri() + ": " + answer.statusCode() + " " + answer.body());
        }
        return answer.body();
    }
}
