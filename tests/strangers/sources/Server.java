import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

/** Counts its answers. */
public class Server {
    public static void main(String[] arguments) throws Exception {
        AtomicInteger count = new AtomicInteger();
        String token = UUID.randomUUID().toString();
        HttpServer server = HttpServer.create(new InetSocketAddress(8000), 64);
        server.createContext("/", exchange -> {
            byte[] body = (count.incrementAndGet() + " " + token).getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }
}
